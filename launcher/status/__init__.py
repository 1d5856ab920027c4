"""Derive what is known about runs from their records: status, logs, metrics, checkpoints."""
