"""Commands that show runs: status, logs, metrics, board and others."""
