"""Format lines of the merged log as text with a prefix, or as JSON."""

import time
from collections.abc import Iterable, Iterator
from typing import TextIO

import msgspec

from launcher.cli.terminal import in_colour, paint, to_json
from launcher.status.logs import LogLine
from launcher.status.restarts import RestartReader
from launcher.status.text import plain

_RANK_COLOURS = ("cyan", "green", "yellow", "blue", "magenta")


class PlainLine(msgspec.Struct, frozen=True):
    """A log line as `--json` prints it, without colours; `node` and `rank` are null if they are not known."""

    at: float | None  # Unix time; None: not recorded
    attempt: int  # its number, from 1
    generation: int | None  # number of the set of ranks in the attempt, from 1; None: not known
    node: int | None
    rank: int | None
    text: str


class Prefix:
    """The prefix of log lines, such as `12:30:05 0:3 │`: time, node and rank. Each rank has a colour on a terminal."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._colour = in_colour(stream)
        self._width = 0

    def whole(self, line: LogLine) -> str:
        """Return the line with its prefix, without characters that could control the terminal."""
        who = self._who(line)
        self._width = max(self._width, len(who))
        when = time.strftime("%H:%M:%S", time.localtime(line.at)) if line.at is not None else " " * 8
        mark = paint(f"{who.rjust(self._width)} │", _RANK_COLOURS[(line.rank or 0) % 5], self._stream)
        return f"{paint(when, 'dim', self._stream)} {mark} {self._text(line.text)}"

    def banner(self, text: str) -> str:
        """Return a text about a restart, to be printed between log lines, in colour."""
        return paint(text, "yellow", self._stream)

    def _who(self, line: LogLine) -> str:
        """Return node and rank of the line, such as `0:3`, or `0:setup`."""
        if line.rank is None:
            return f"{line.node}:setup"
        return f"{line.rank}" if line.node is None else f"{line.node}:{line.rank}"

    def _text(self, text: str) -> str:
        """Return the line's text: without its colours if the stream to which lines are printed shows none, else with
        the last colour ended.
        """
        if not self._colour:
            return plain(text)
        return f"{text}\x1b[0m" if "\x1b" in text else text


def with_restarts(lines: Iterable[LogLine], restarts: RestartReader, prefix: Prefix) -> Iterator[str]:
    """Yield each log line as text with its prefix. Before the first line after a restart, and at the end for restarts
    after the last line, yield a line about the restart.
    """
    for line in lines:
        for text in restarts.before(line.attempt, line.generation or 1):
            yield prefix.banner(text)
        yield prefix.whole(line)
    for text in restarts.all():
        yield prefix.banner(text)


def json_line(line: LogLine) -> str:
    """Return a log line as one JSON object with the fields of `PlainLine`; its text is without colours."""
    found = PlainLine(line.at, line.attempt, line.generation, line.node, line.rank, plain(line.text))
    return to_json(found, indent=-1)
