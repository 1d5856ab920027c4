"""What an agent reads and notes of a rank's log: how far it has grown, when, and its last lines."""

import os
import re
import time
from pathlib import Path

from launcher.rundir.layout import times_of

TAIL_LINES = 20
_TAIL_BYTES = 8192
_EXCEPTION = re.compile(r"^(?:[\w.]+\.)?[A-Z]\w*(?:Error|Exception|Interrupt|Exit|Warning)\b.*")
_FRAME = re.compile(r'^\s+File "(?P<file>[^"]+)", line (?P<line>\d+), in (?P<name>.+)$')


class LogFile:
    """One rank's log, seen from outside: the rank itself writes it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.size = 0
        self._times = times_of(path)

    def grew(self) -> bool:
        """True where it has grown since the last look; then the time is noted beside it for the merged view."""
        try:
            size = self.path.stat().st_size
        except FileNotFoundError:
            return False  # the rank has not opened it yet
        if size == self.size:
            return False
        self.size = size
        note = f"{time.time_ns() // 1_000_000} {size}\n".encode()
        flags = os.O_CREAT | os.O_WRONLY | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC
        fd = os.open(self._times, flags, 0o600)
        try:
            os.write(fd, note)
        finally:
            os.close(fd)
        return True

    def tail(self) -> tuple[str, ...]:
        """Its last lines, without control characters, for people."""
        try:
            with self.path.open("rb") as file:
                file.seek(max(0, os.fstat(file.fileno()).st_size - _TAIL_BYTES))
                text = file.read(_TAIL_BYTES).decode(errors="replace")
        except OSError:
            return ()
        lines = [_plain(line) for line in text.splitlines()]
        return tuple(line for line in lines if line.strip())[-TAIL_LINES:]


def last_exception(tail: tuple[str, ...]) -> tuple[str | None, str | None]:
    """The last exception line of a log's tail and the innermost frame before it; for ranks that are not Python's."""
    for number in range(len(tail) - 1, -1, -1):
        if _EXCEPTION.match(tail[number]):
            return tail[number], _frame_before(tail[:number])
    return None, None


def _frame_before(lines: tuple[str, ...]) -> str | None:
    for line in reversed(lines):
        if found := _FRAME.match(line):
            return f"{Path(found['file']).name}:{found['line']} in {found['name']}"
    return None


def _plain(line: str) -> str:
    return "".join(char if char.isprintable() or char == "\t" else " " for char in line)[:2000]
