"""Making text from elsewhere safe to show: whatever a log holds, it cannot repaint or steer the terminal."""

import re

_NOT_TEXT = re.compile(
    r"(?P<colour>\x1b\[[0-9;:]*m)"  # the one kind that may stay
    r"|(?:\x1b\[|\x9b)[0-?]*[ -/]*[@-~]"  # CSI: cursor, erase, modes
    r"|(?:\x1b[\]PX^_]|[\x90\x98\x9d-\x9f])[^\x07\x1b\x9c]*(?:\x07|\x1b\\|\x9c)"  # OSC and its kin: title, clipboard
    r"|\x1b[ -/]*[0-~]"  # the two-character ones
    r"|[\x00-\x08\x0a-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069]"  # the rest, and what turns text round
)


def coloured(text: str) -> str:
    """Without any control but colours."""
    return _NOT_TEXT.sub(lambda found: found["colour"] or "", text)


def plain(text: str) -> str:
    """Without any control at all, except tabs."""
    return _NOT_TEXT.sub("", text)
