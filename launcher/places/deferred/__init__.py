"""Runs that wait here for runs of other clusters, before they go to their own."""
