"""Kinds of values that an option can have: each reads a node, shows a value and gives its JSON Schema."""
