"""Checks: facts about a place where runs go, and what is said of them. Each kind's own doctor gathers and asks.

gathered by programs (*_there.py: the standard library alone, run here or as text on a host) ─► facts ─► findings
"""
