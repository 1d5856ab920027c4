"""The supervisor of a run: its program, and what those of all places share."""
