"""Read one log file as it grows: that of a rank, or of the setup, the shell code that runs on a node before its ranks.
Beside each log, the agent (the launcher's process on the node) writes a `.times` file, whose lines say how long the log
was at which time; the times of log lines come from it.
"""

import errno
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from launcher.run.layout import times_of
from launcher.status.lines import LineSplitter

# Not there yet, no longer, or a link or socket that somebody put in its place.
_NOT_THERE = (errno.ENOENT, errno.ENOTDIR, errno.ESTALE, errno.ELOOP, errno.ENXIO)
_DIGITS_OF_MS, _DIGITS_OF_BYTES = 14, 18
_CHUNK_BYTES = 16 * 1024  # times a thousand ranks


@dataclass(frozen=True, slots=True)
class StampedLine:
    """A line of a rank's log, with its Unix time, or None if that is not known."""

    at: float | None
    rank: int  # for a line of setup: the node
    text: str


@contextmanager
def open_log(path: Path) -> Iterator[int | None]:
    """Yield a file descriptor of the log, or None if it does not exist or is no regular file."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        if error.errno not in _NOT_THERE:
            raise
        yield None
        return
    try:
        yield fd if stat.S_ISREG(os.fstat(fd).st_mode) else None
    finally:
        os.close(fd)


def read_notes(log: Path) -> Iterator[tuple[int, float]]:
    """Yield (length of the log in bytes, Unix time) for each line of the log's `.times` file."""
    tail, rest = GrowingFile(times_of(log)), b""
    while data := tail.read():
        *lines, rest = (rest + data).split(b"\n")
        yield from (note for note in map(_note, lines) if note is not None)


def _offset_in_times(times: Path, offset: int) -> int:
    """Return an offset in the file `times` from which on it has all its lines about log bytes after `offset`; some
    earlier lines may follow it too.

    Each line of `times` tells how long the log was at a time. The search begins at the end of the file, so that a long
    one is not read from its beginning.
    """
    with open_log(times) as fd:
        start = size = os.fstat(fd).st_size if fd is not None else 0
        while fd is not None and start > 0:
            start = max(0, size - 4 * max(size - start, _CHUNK_BYTES))
            lines = os.pread(fd, _CHUNK_BYTES, start).split(b"\n")[1:-1]  # the first one may be a part
            if any(note[0] <= offset for note in map(_note, lines) if note is not None):
                return start
        return 0


class Growth:
    """A reader of the `.times` file beside a log, in which a line `unix_ms offset` says that the log had that many
    bytes by then.
    """

    def __init__(self, path: Path, start: int = 0) -> None:
        self._tail = GrowingFile(path, _offset_in_times(path, start) if start else 0)
        self._rest = b""
        self._notes: list[tuple[int, float]] = []  # the nearest last

    def at(self, offset: int) -> float | None:
        """Return the Unix time by which the byte before `offset` was written, or None if that is not recorded yet.

        Offsets must not decrease between calls.
        """
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
    """A growing file, read chunk by chunk. It is open only during a read, so that a thousand of them need no
    descriptors.
    """

    def __init__(self, path: Path, offset: int = 0) -> None:
        self._path = path
        self._offset = offset

    def read(self) -> bytes:
        """Return the next bytes, at most one chunk, or b"" if there are none yet or the file does not exist."""
        with open_log(self._path) as fd:
            data = os.pread(fd, _CHUNK_BYTES, self._offset) if fd is not None else b""
        self._offset += len(data)
        return data


class RankLog:
    """A reader of the log file of a rank, or of a node's setup; `rank` is then the node's index."""

    def __init__(self, path: Path, rank: int, start: int = 0) -> None:
        self.rank = rank
        self._tail = GrowingFile(path, start)
        self._growth = Growth(times_of(path), start)
        self._splitter = LineSplitter(start)

    def lines(self, *, final: bool, seen_at: float | None) -> Iterator[StampedLine]:
        """Yield all complete new lines; with `final`, an unfinished last one too.

        `seen_at` is the Unix time of a line for which none is recorded yet (None: it has none).
        """
        while data := self._tail.read():
            for offset, text in self._splitter.feed(data):
                yield self._stamped(offset, text, seen_at)
        if final:
            for offset, text in self._splitter.rest():
                yield self._stamped(offset, text, seen_at)

    @property
    def moving(self) -> str:
        """The present text of a progress bar at the end of the log, or ""."""
        return self._splitter.moving

    def _stamped(self, offset: int, text: str, seen_at: float | None) -> StampedLine:
        """Return the line that ends at `offset` as a StampedLine; `seen_at` is used as its time if none is recorded."""
        at = self._growth.at(offset)
        return StampedLine(seen_at if at is None else at, self.rank, text)


def _note(line: bytes) -> tuple[int, float] | None:
    """Return (offset, Unix time) of a line of a `.times` file, or None if it is damaged."""
    moment, _, offset = line.partition(b" ")
    short = len(moment) <= _DIGITS_OF_MS and len(offset) <= _DIGITS_OF_BYTES
    return (int(offset), int(moment) / 1000) if short and moment.isdigit() and offset.isdigit() else None
