"""Prove that a training gives the same numbers when it is killed: `launch prove`."""
