"""Ranks that go on in their processes when another one is replaced: what they note, say and hand over."""
