"""Choose lines of a log, and find where they begin without reading all of it."""

import os
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from launcher.status.lines import LineSplitter
from launcher.status.rank_log import open_log, read_notes
from launcher.status.text import plain

_BLOCK_BYTES = 64 * 1024
_LONGEST_BYTES = 1 << 20  # a line beyond it is taken for one that begins here


@dataclass(frozen=True, slots=True)
class LogChoice:
    """The part of a log that a user wants: lines of some ranks or nodes, since a Unix time, with a pattern, and of
    these the `last` so many. None means no limit.
    """

    ranks: frozenset[int] | None = None
    nodes: frozenset[int] | None = None
    since: float | None = None  # Unix time
    pattern: re.Pattern[str] | None = None
    last: int | None = None  # only so many of the lines that the other fields select

    @property
    def is_late(self) -> bool:
        """Whether `since` or `last` is set: only a later part of the log is wanted, and reading need not begin at its
        start.
        """
        return self.since is not None or self.last is not None

    def matches(self, text: str) -> bool:
        """Return whether the text contains the pattern, or no pattern is set."""
        return self.pattern is None or self.pattern.search(plain(text)) is not None


def begin_at(log: Path, choice: LogChoice) -> tuple[int, int]:
    """Return (the offset in bytes at which to begin to read the file, how many lines were counted for `choice.last`).

    If `choice.last` is set, lines that match `choice.pattern` are counted from the file's end, at most so many. The
    offset is that of the first of these lines, or of what was written from the time `choice.since` on if that is later
    in the file; it is 0 if neither is set. Return (0, 0) if the file does not exist.
    """
    with open_log(log) as fd:
        if fd is None:
            return 0, 0
        start = _line_at(fd, _offset_at(log, choice.since)) if choice.since is not None else 0
        if choice.last is None:
            return start, 0
        last, found = _last_lines(fd, choice.last, lambda line: choice.matches(_shown(line)))
        return max(start, last), found


def _offset_at(log: Path, moment: float) -> int:
    """Return the length in bytes that the log had at the last time before `moment` that its `.times` file records, or
    0 if it records none.
    """
    before = 0
    for offset, at in read_notes(log):
        if at >= moment:
            break
        before = offset
    return before


def _line_at(fd: int, offset: int) -> int:
    """Return the offset at which the line that contains the byte at `offset` begins."""
    if offset == 0 or os.pread(fd, 1, offset - 1) == b"\n":
        return offset
    return next((start for start, _ in _backwards(fd, offset)), 0)


def _last_lines(fd: int, most: int, wanted: Callable[[bytes], bool]) -> tuple[int, int]:
    """Return (offset, number) of the last lines for which `wanted` returns True, at most `most`: where the first of
    them begins, and how many there are. Without one the offset is the end of the file.
    """
    begin, found = os.fstat(fd).st_size, 0
    for start, line in _backwards(fd, begin):
        if found >= most:
            break
        if wanted(line):
            begin, found = start, found + 1
    return begin, found


def _shown(line: bytes) -> str:
    """Return the line as text, cut if it is very long, just as `LineSplitter` yields it when the whole log is read."""
    return next(text for _, text in LineSplitter().feed(line + b"\n"))


def _backwards(fd: int, end: int) -> Iterator[tuple[int, bytes]]:
    """Yield (offset, line without its line feed) for each line before the offset `end`, the last one first. A line that
    `end` divides is cut off there. Stop at a line longer than `_LONGEST_BYTES`, of which only the end is yielded.
    """
    position, rest, is_end = end, b"", True
    while position > 0 and len(rest) < _LONGEST_BYTES:
        size = min(_BLOCK_BYTES, position)
        position -= size
        rest, *lines = (os.pread(fd, size, position) + rest).split(b"\n")
        start = end
        for line in reversed(lines):
            start -= len(line)
            if line or not is_end:
                yield start, line
            start -= 1  # the line feed before it
            is_end = False
        end = position + len(rest)
    if rest or not is_end:
        yield position, rest
