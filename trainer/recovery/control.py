"""The wire from launch to a rank: the word that a rank was replaced, or that more join, and where ranks meet anew."""

import os
import select
import sys
import time
from pathlib import Path

import msgspec

_MOST_BYTES = 1 << 20
_READ_BYTES = 1 << 16
_FLAGS = os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC


class MeetAnew(msgspec.Struct, frozen=True):
    """This process is a rank of a new generation."""

    generation: int
    log: str
    log_before: str
    environment: dict[str, str]


_words = msgspec.json.Decoder(MeetAnew)


class Control:
    """Launch's words to this rank."""

    def __init__(self, path: Path) -> None:
        """Raises OSError."""
        self._urgent = os.open(path, _FLAGS)
        try:
            self._at_step_end = os.open(f"{path}.step-end", _FLAGS)
        except OSError:
            os.close(self._urgent)
            raise
        self._rest = {self._urgent: b"", self._at_step_end: b""}

    def wait(self, within_s: float) -> MeetAnew | None:
        """The newest word of both kinds; None where none comes in time, or what comes is none."""
        end = time.monotonic() + within_s
        while not any(b"\n" in rest for rest in self._rest.values()):
            left_s = end - time.monotonic()
            ready = self._ready(left_s, *self._rest) if left_s > 0 else []
            if not ready or not all(map(self._read, ready)):  # launch's end is gone
                return None
            if any(len(rest) >= _MOST_BYTES for rest in self._rest.values()):
                return None
        for fd in self._rest:
            while self._ready(0, fd) and self._read(fd):
                pass
        words = [word for fd in self._rest if (word := self._taken(fd)) is not None]
        return max(words, key=lambda word: word.generation, default=None)

    @property
    def has_message_for_step_end(self) -> bool:
        """Whether there is one that can wait for the end of a step."""
        return bool(self._ready(0, self._at_step_end))

    def fileno(self) -> int:
        """Where there is something to read once there is a word that cannot."""
        return self._urgent

    def close(self) -> None:
        for fd in self._rest:
            os.close(fd)

    def _taken(self, fd: int) -> MeetAnew | None:
        lines, _, self._rest[fd] = self._rest[fd].rpartition(b"\n")
        return _newest(lines)

    def _ready(self, within_s: float, *fds: int) -> list[int]:
        waiting = select.poll()
        for fd in fds:
            waiting.register(fd, select.POLLIN)
        return [fd for fd, _ in waiting.poll(1000 * within_s)]

    def _read(self, fd: int) -> bool:
        """False: launch's end is gone."""
        data = os.read(fd, _READ_BYTES)
        self._rest[fd] += data
        return data != b""


def _newest(lines: bytes) -> MeetAnew | None:
    try:
        return _words.decode(lines.rpartition(b"\n")[2])
    except msgspec.MsgspecError:
        return None


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
