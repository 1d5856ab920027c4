"""Specs with `steps:`: several jobs in one file, of which some need others. Pure."""
