"""The board's live data: the state of all runs, and what is sent to open pages."""
