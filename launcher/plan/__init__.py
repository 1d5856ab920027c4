"""Decide everything about a run before it starts, as a plan."""
