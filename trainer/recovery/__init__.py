"""Lets surviving ranks continue in place when another one is replaced."""
