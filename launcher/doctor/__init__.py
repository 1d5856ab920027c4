"""Checks: facts about a place where runs go, and what is said of them. Each kind's own doctor gathers and asks."""
