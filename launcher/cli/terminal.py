"""Output to the terminal: colours, tables that fit it, JSON that is safe to print, and whether stdout and stderr are
terminals at all.
"""

import os
import re
import sys
from collections.abc import Sequence
from typing import TextIO

import msgspec

from launcher.states import State
from launcher.status.text import escaped, plain

safe = plain
REDRAW_S = 1.0  # the time after which a command draws its screen again
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
    State.INTERRUPTED: "yellow",
    State.CANCELLED: "yellow",
    State.REGROUPING: "yellow",
    State.UNKNOWN: "yellow",
}


def tell(text: str) -> None:
    """Print a line for the user on stderr, and flush it."""
    print(safe(text), file=sys.stderr, flush=True)


def show_news() -> None:
    """Print messages of the launcher, such as that it waits for a cluster, on stderr from now on."""
    from launcher.copies import news  # late: of no use to commands that do not wait

    watching = is_terminal(sys.stderr)
    news.listen(tell, watching=watching)


def to_json(value: object, *, indent: int = 2) -> str:
    """Return the value as JSON: indented over several lines, or on one line if `indent` is -1."""
    return escaped(msgspec.json.format(msgspec.json.encode(value), indent=indent))


def is_terminal(stream: TextIO) -> bool:
    """Return whether the stream is a terminal that can move its cursor."""
    return stream.isatty() and os.environ.get("TERM") != "dumb"


def in_colour(stream: TextIO) -> bool:
    """Return whether to write colours to the stream: it is a terminal, and NO_COLOR is not set."""
    return is_terminal(stream) and not os.environ.get("NO_COLOR")


def paint(text: str, colour: str, stream: TextIO | None = None) -> str:
    """Return the text in colour if the stream, by default stdout, shows colours."""
    if not colour or not in_colour(sys.stdout if stream is None else stream):
        return text
    return f"\x1b[{_COLOURS[colour]}m{text}\x1b[0m"


def state_colour(state: State) -> str:
    """Return the name of the colour in which a state is shown, "" for none."""
    return _OF_STATE.get(state, "")


def size(stream: TextIO) -> tuple[int, int]:
    """Return (columns, rows) of the terminal that `stream` is, or (80, 24) if it is no terminal."""
    try:
        found = os.get_terminal_size(stream.fileno())
    except (OSError, ValueError):
        return 80, 24
    return found.columns or 80, found.lines or 24


def cut(text: str, width: int) -> str:
    """Return the text, cut to `width` characters with `…` at its end if it is longer."""
    return text if len(text) <= width else f"{text[: max(0, width - 1)]}…"


def cut_painted(text: str, width: int) -> str:
    """Return a line that may have colours, cut to `width` characters; a line that is cut loses its colours."""
    bare = safe(text)
    return text if len(bare) <= width else cut(bare, width)


def is_place(line: str) -> bool:
    """Return whether a line begins with a place in a file, `file:line:col:`."""
    return _PLACE.match(line) is not None


def columns(rows: Sequence[Sequence[str]], indent: str = "") -> list[str]:
    """Return each row as a line of text with `indent` before it; cells are padded so that columns line up."""
    widths = [*(max(map(len, column)) for column in zip(*rows, strict=True))][:-1]
    padded = ([*map(str.ljust, row, widths), row[-1]] for row in rows)
    return [indent + "  ".join(row).rstrip() for row in padded]


def fitting(table: Sequence[Sequence[str]], less: Sequence[str], width: int | None, indent: str = "") -> list[str]:
    """Return the table as lines, each with `indent` before it, without the columns that do not fit `width` (None: no
    limit).

    The first row has the heads. Columns are left out in the order of `less`, which are heads; lines that are still too
    wide are cut.
    """
    for name in ("", *less):
        kept = [at for at, head in enumerate(table[0]) if head != name]
        table = [[row[at] for at in kept] for row in table]
        lines = columns(table, indent)
        if width is None or max(map(len, lines)) <= width:
            return lines
    return [cut(line, width or 0) for line in lines]


def width_of(stream: TextIO) -> int | None:
    """Return the width in characters of the terminal that `stream` is, or None if it is no terminal."""
    return size(stream)[0] if is_terminal(stream) else None


class Screen:
    """A block of lines at the end of a terminal that is drawn again and again in place."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._drawn: list[str] = []

    def show(self, lines: list[str], *, last: bool = False) -> None:
        """Draw the lines in place of those drawn before: the first ones, as many as fit the terminal, or with `last`,
        for the final picture, all of them.
        """
        width, height = size(self._stream)
        shown = lines if last else [cut_painted(line, width) for line in lines[: height - 1]]
        # A terminal that was made narrower has broken what was drawn into more rows.
        rows = sum(max(1, -(-len(safe(line)) // width)) for line in self._drawn)
        up = f"\x1b[{rows}A" if rows else ""
        self._stream.write(f"{up}\r\x1b[J" + "".join(f"{line}\n" for line in shown))
        self._stream.flush()
        self._drawn = shown
