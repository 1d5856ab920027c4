"""Runs of one file with `steps:`, as commands take and show them."""
