"""The wire from launch to a rank: the word that a rank was replaced, and where ranks meet anew."""

import os
import select
import sys
import time
from pathlib import Path

import msgspec

_MOST_BYTES = 1 << 20
_READ_BYTES = 1 << 16


class MeetAnew(msgspec.Struct, frozen=True):
    """This process is a rank of a new generation."""

    generation: int
    log: str
    log_before: str
    environment: dict[str, str]


class Control:
    """Launch's words to this rank."""

    def __init__(self, path: Path) -> None:
        """Raises OSError."""
        self._fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        self._rest = b""

    def wait(self, within_s: float) -> MeetAnew | None:
        """The newest word; None where none comes in time, or what comes is none."""
        end = time.monotonic() + within_s
        while b"\n" not in self._rest and len(self._rest) < _MOST_BYTES:
            left_s = end - time.monotonic()
            if left_s <= 0 or not self._has_more(left_s):
                return None
            if not self._read():
                return None  # launch's end is gone
        while self._has_more(0) and self._read():
            pass
        lines, _, self._rest = self._rest.rpartition(b"\n")
        line = lines.rpartition(b"\n")[2]
        try:
            return msgspec.json.decode(line, type=MeetAnew)
        except msgspec.MsgspecError:
            return None

    def fileno(self) -> int:
        """Where there is something to read once there is another word."""
        return self._fd

    def close(self) -> None:
        os.close(self._fd)

    def _has_more(self, within_s: float) -> bool:
        waiting = select.poll()
        waiting.register(self._fd, select.POLLIN)
        return bool(waiting.poll(1000 * within_s))

    def _read(self) -> bool:
        """False: launch's end is gone."""
        data = os.read(self._fd, _READ_BYTES)
        self._rest += data
        return data != b""


def take_place(word: MeetAnew) -> None:
    """Be that rank: its variables, and its log for what is printed from now on, where that was its log so far."""
    os.environ.update(word.environment)
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    try:
        before = os.stat(word.log_before)
        new = os.open(word.log, os.O_CREAT | os.O_WRONLY | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    except OSError:
        return
    for number in (1, 2):
        now = os.fstat(number)
        if (now.st_dev, now.st_ino) == (before.st_dev, before.st_ino):
            os.dup2(new, number)
    os.close(new)
