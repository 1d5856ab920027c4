"""The supervisor of a run: its program, and what the supervisors of all places share."""
