"""Read a rank's log for its agent: how far it has grown, when, and its last lines."""

import contextlib
import os
import queue
import threading
import time
from collections.abc import Callable
from pathlib import Path

from launcher.coordinator.tracebacks import crash_in
from launcher.run.layout import times_of

LAST_S = 1.0  # for a last write of what takes milliseconds; a disk that hangs is not waited for

_TAIL_BYTES = 64 * 1024  # faulthandler writes up to 100 frames of each of 100 threads
_TAIL_LINES = 20


class WriteBehind:
    """A thread that calls functions which write to a disk, in order, so that the caller never waits for the disk. If
    one raises OSError, its write is dropped and the thread continues.
    """

    def __init__(self) -> None:
        self._writes: queue.SimpleQueue[Callable[[], object] | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None

    def do(self, write: Callable[[], object]) -> None:
        """Queue a write and return at once."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._work, name="write behind", daemon=True)
            self._thread.start()
        self._writes.put(write)

    def close(self) -> None:
        """Wait until the queued writes are done, but at most LAST_S (1) seconds, as a disk may hang; the daemon thread
        continues with the others as long as the process lives.
        """
        if self._thread is not None:
            self._writes.put(None)
            self._thread.join(LAST_S)
            self._thread = None

    def _work(self) -> None:
        """Carry out the queued writes in order, until `close` is called and those queued before it are done."""
        while (write := self._writes.get()) is not None:
            with contextlib.suppress(OSError):
                write()


class LogFile:
    """A rank's log, as its agent reads it; the rank itself writes the log."""

    def __init__(self, path: Path, behind: WriteBehind | None = None) -> None:
        """Read the log at `path`; `behind` writes the times of growth without blocking the caller of `grew`."""
        self.path, self._behind = path, behind or WriteBehind()
        self.size = 0
        self._times = times_of(path)

    def bytes_now(self) -> int:
        """Return the log's size; unlike `grew`, record nothing."""
        try:
            return self.path.stat().st_size
        except FileNotFoundError:
            return 0  # the rank has not opened it yet

    def grew(self) -> bool:
        """Return whether the log has grown since the last call. If so, append the time and the log's size to the file
        beside the log, so that the lines of several logs can later be merged by time.
        """
        size = self.bytes_now()
        if size == self.size:
            return False
        self.size = size
        line = f"{time.time_ns() // 1_000_000} {size}\n".encode()
        self._behind.do(lambda: self._note(line))  # without it these lines stand where the next ones do
        return True

    def _note(self, line: bytes) -> None:
        """Append `line` to the file that records when the log had which size; a line has the Unix time in milliseconds
        and the size in bytes.
        """
        flags = os.O_CREAT | os.O_WRONLY | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC
        fd = os.open(self._times, flags, 0o600)
        try:
            os.write(fd, line)
        finally:
            os.close(fd)

    def since(self, size: int) -> list[str]:
        """Return the lines that were written after the log had `size` bytes, from the first 64 KiB of them; empty if
        the log cannot be read.
        """
        try:
            with self.path.open("rb") as file:
                file.seek(size)
                return [_plain(line) for line in file.read(_TAIL_BYTES).decode(errors="replace").splitlines()]
        except OSError:
            return []

    def tail(self) -> tuple[str, ...]:
        """Return the log's last lines, at most _TAIL_LINES, without control characters and empty lines; () if it cannot
        be read. If they hold a crash report by faulthandler, only the stack of the thread that crashed is kept of it.
        """
        try:
            with self.path.open("rb") as file:
                file.seek(max(0, os.fstat(file.fileno()).st_size - _TAIL_BYTES))
                text = file.read(_TAIL_BYTES).decode(errors="replace")
        except OSError:
            return ()
        crash = crash_in([_plain(line) for line in text.splitlines() if line.strip()])
        room = _TAIL_LINES - len(crash.stack)
        return (*crash.before[-room:], *crash.stack)


def _plain(line: str) -> str:
    """Return the line with control characters replaced by spaces, cut to 2,000 characters."""
    return "".join(char if char.isprintable() or char == "\t" else " " for char in line)[:2000]
