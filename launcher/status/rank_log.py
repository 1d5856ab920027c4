"""One log, read as it grows: its lines, and when each of them was written as far as the agent noted it."""

import errno
import os
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from launcher.rundir.layout import times_of
from launcher.status.lines import LineSplitter

# Not there yet, no longer, or a link or socket that somebody put in its place.
_NOT_THERE = (errno.ENOENT, errno.ENOTDIR, errno.ESTALE, errno.ELOOP, errno.ENXIO)
_CHUNK_BYTES = 16 * 1024  # times a thousand ranks


@dataclass(frozen=True, slots=True)
class StampedLine:
    at: float | None
    rank: int
    text: str


class Growth:
    """The `.times` file beside a log: `unix_ms offset`, meaning that by then the log had grown to that many bytes."""

    def __init__(self, path: Path) -> None:
        self._tail = GrowingFile(path)
        self._rest = b""
        self._notes: list[tuple[int, float]] = []  # the nearest last

    def at(self, offset: int) -> float | None:
        """When the byte before this offset was there. Offsets must not go down."""
        while True:
            while self._notes and self._notes[-1][0] < offset:
                self._notes.pop()
            if self._notes:
                return self._notes[-1][1]
            data = self._tail.read()
            if not data:
                return None
            *lines, self._rest = (self._rest + data).split(b"\n")
            self._notes = [note for note in map(_note, reversed(lines)) if note is not None]


class GrowingFile:
    """A file that grows, read chunk by chunk; open only while it is read, so that a thousand need no descriptors."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._offset = 0

    def read(self) -> bytes:
        """The next bytes, or nothing where there are none now."""
        try:
            fd = os.open(self._path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        except OSError as error:
            if error.errno in _NOT_THERE:
                return b""
            raise
        try:
            regular = stat.S_ISREG(os.fstat(fd).st_mode)
            data = os.pread(fd, _CHUNK_BYTES, self._offset) if regular else b""
        finally:
            os.close(fd)
        self._offset += len(data)
        return data


class RankLog:
    """A rank's, or a node's setup's, log file."""

    def __init__(self, path: Path, rank: int) -> None:
        self.rank = rank
        self._tail = GrowingFile(path)
        self._growth = Growth(times_of(path))
        self._splitter = LineSplitter()

    def lines(self, *, final: bool, seen_at: float | None) -> Iterator[StampedLine]:
        """All lines that are there now; `final`: the last one too, finished or not.

        `seen_at` stands in for the time of a line that the agent has not noted yet.
        """
        while data := self._tail.read():
            for offset, text in self._splitter.feed(data):
                yield self._stamped(offset, text, seen_at)
        if final:
            for offset, text in self._splitter.rest():
                yield self._stamped(offset, text, seen_at)

    def _stamped(self, offset: int, text: str, seen_at: float | None) -> StampedLine:
        at = self._growth.at(offset)
        return StampedLine(seen_at if at is None else at, self.rank, text)


def _note(line: bytes) -> tuple[int, float] | None:
    moment, _, offset = line.partition(b" ")
    return (int(offset), int(moment) / 1000) if moment.isdigit() and offset.isdigit() else None
