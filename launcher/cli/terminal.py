"""What the other end of stdout and stderr is, and what may be sent there."""

import os
import re
import sys
from typing import TextIO

from launcher.status.text import plain as safe
from launcher.words import State

__all__ = ["cut", "cut_painted", "in_colour", "is_place", "is_terminal", "paint", "safe", "size", "state_colour"]

_PLACE = re.compile(r".+:\d+:\d+: ")
_COLOURS = {
    "red": "31",
    "green": "32",
    "yellow": "33",
    "blue": "34",
    "magenta": "35",
    "cyan": "36",
    "dim": "2",
    "bold": "1",
}
_OF_STATE = {
    State.SUCCEEDED: "green",
    State.RUNNING: "cyan",
    State.FAILED: "red",
    State.LOST: "red",
    State.CANCELLED: "yellow",
    State.REGROUPING: "yellow",
    State.UNKNOWN: "yellow",
}


def show_news() -> None:
    """What people who wait for a cluster are told, on stderr from now on."""
    from launcher.clusters.keeping import news  # late: of no use to commands that do not wait

    news.listen(lambda text: print(safe(text), file=sys.stderr, flush=True))


def is_terminal(stream: TextIO) -> bool:
    return stream.isatty() and os.environ.get("TERM") != "dumb"


def in_colour(stream: TextIO) -> bool:
    return is_terminal(stream) and not os.environ.get("NO_COLOR")


def paint(text: str, colour: str, stream: TextIO | None = None) -> str:
    """In colour where the stream (stdout, unless named) shows it."""
    if not colour or not in_colour(sys.stdout if stream is None else stream):
        return text
    return f"\x1b[{_COLOURS[colour]}m{text}\x1b[0m"


def state_colour(state: State) -> str:
    return _OF_STATE.get(state, "")


def size(stream: TextIO) -> tuple[int, int]:
    """Columns and rows."""
    try:
        found = os.get_terminal_size(stream.fileno())
    except (OSError, ValueError):
        return 80, 24
    return found.columns or 80, found.lines or 24


def cut(text: str, width: int) -> str:
    return text if len(text) <= width else f"{text[: max(0, width - 1)]}…"


def cut_painted(text: str, width: int) -> str:
    """A line that may have colours in it, cut to a width: cut short, it loses them."""
    bare = safe(text)
    return text if len(bare) <= width else cut(bare, width)


def is_place(line: str) -> bool:
    """True where a line begins with file:line:col:"""
    return _PLACE.match(line) is not None
