"""Measure how a training scales with the number of ranks: `launch scale`."""
