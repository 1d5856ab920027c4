"""What the keepers of runs share: the attempt they carry out, its agents, and writing how it ended."""
