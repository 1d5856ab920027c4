"""Make text of unknown origin safe to print, so that a log cannot control the terminal."""

import re

# Controls, line ends that are none to a terminal, what turns the order of text round, and marks that have no width.
_UNSEEN = "\x7f-\x9f\xad\u061c\u180e\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb\U000e0000-\U000e007f"
_NOT_TEXT = re.compile(
    r"(?P<colour>\x1b\[[0-9;:]*m)"  # the one kind that may stay
    r"|(?:\x1b\[|\x9b)[0-?]*[ -/]*[@-~]"  # CSI: cursor, erase, modes
    # OSC and its kin: title, clipboard. Another beginning ends one, so that no character is looked at twice.
    r"|(?:\x1b[\]PX^_]|[\x90\x98\x9d-\x9f])[^\x07\x1b\x90\x98\x9c-\x9f]*(?:\x07|\x1b\\|\x9c)"
    r"|\x1b[ -/]*[0-~]"  # the two-character ones
    rf"|[\x00-\x08\x0a-\x1f{_UNSEEN}]"
)
_UNSEEN_CHARACTER = re.compile(f"[{_UNSEEN}]")


def coloured(text: str) -> str:
    """Return the text without control characters; sequences for colours are kept."""
    return _NOT_TEXT.sub(lambda found: found["colour"] or "", text)


def plain(text: str) -> str:
    """Return the text without control characters except tabs."""
    return _NOT_TEXT.sub("", text)


def escaped(json: bytes) -> str:
    """Return JSON as text in which every invisible character is written as an escape."""
    return _UNSEEN_CHARACTER.sub(lambda found: _as_units(found.group()), json.decode())


def _as_units(char: str) -> str:
    r"""Return a character as the `\u` escapes of JSON."""
    return "".join(f"\\u{unit:04x}" for unit in memoryview(char.encode("utf-16-le")).cast("H"))
