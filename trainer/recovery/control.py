"""Receive launch's message that a rank was replaced or that more join, in a rank or in a reserve process.

A reserve process waits until it replaces a lost rank.
"""

import os
import select
import sys
import time
from pathlib import Path

import msgspec

from trainer.wire import Launched, Wire

_MOST_BYTES = 1 << 20
_READ_BYTES = 1 << 16
_FLAGS = os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC


class RejoinMessage(msgspec.Struct, frozen=True):
    """The message from launch that gives this process its rank in a new generation: a new set of connected ranks.

    `log` is the path of the log to write from now on, in place of `log_before`; `environment` has the rank's variables.
    """

    generation: int
    log: str  # the path of the log to write from now on
    log_before: str  # the path of the log that `log` replaces, if output goes there
    environment: dict[str, str]  # the variables of the rank


_decoder = msgspec.json.Decoder(RejoinMessage)


class Control:
    """The two pipes over which this rank receives messages about new generations from launch.

    A generation is a set of ranks that train together. Messages on one pipe have to be acted on at once; those on the
    other can wait for the end of a step.
    """

    def __init__(self, path: Path) -> None:
        """Open the pipes. Raises OSError."""
        self._urgent = os.open(path, _FLAGS)
        try:
            self._at_step_end = os.open(f"{path}.step-end", _FLAGS)
        except OSError:
            os.close(self._urgent)
            raise
        self._rest = {self._urgent: b"", self._at_step_end: b""}

    def wait(self, within_s: float) -> RejoinMessage | None:
        """Wait for a message on either pipe, read all that have come, and return that of the newest generation.

        A generation is a set of ranks that train together; older messages are dropped. Returns None if no message that
        can be decoded comes within `within_s` seconds, or launch has closed a pipe.
        """
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
        messages = [message for fd in self._rest if (message := self._taken(fd)) is not None]
        return max(messages, key=lambda message: message.generation, default=None)

    @property
    def has_message_for_step_end(self) -> bool:
        """Whether launch has sent a message that can wait for the end of a step; `wait` reads it.

        It says that other ranks are to join, while none was lost.
        """
        return bool(self._ready(0, self._at_step_end))

    def fileno(self) -> int:
        """Return the descriptor of the pipe for messages that cannot wait for the end of a step: ranks were replaced.

        It is readable once there is such a message, or launch has closed its end of the pipe.
        """
        return self._urgent

    def close(self) -> None:
        """Close the pipes."""
        for fd in self._rest:
            os.close(fd)

    def _taken(self, fd: int) -> RejoinMessage | None:
        """Remove the complete messages that were read from the pipe `fd` and return the last; None if there is none."""
        lines, _, self._rest[fd] = self._rest[fd].rpartition(b"\n")
        return _newest(lines)

    def _ready(self, within_s: float, *fds: int) -> list[int]:
        """Wait up to `within_s` seconds until one of the descriptors is readable, and return those that are."""
        waiting = select.poll()
        for fd in fds:
            waiting.register(fd, select.POLLIN)
        return [fd for fd, _ in waiting.poll(1000 * within_s)]

    def _read(self, fd: int) -> bool:
        """Read the available bytes of the pipe `fd`, and add them to those of which no message was made yet.

        Returns False if launch has closed its end of the pipe.
        """
        data = os.read(fd, _READ_BYTES)
        self._rest[fd] += data
        return data != b""


def _newest(lines: bytes) -> RejoinMessage | None:
    """Return the last of these lines as a message, or None if it cannot be decoded."""
    try:
        return _decoder.decode(lines.rpartition(b"\n")[2])
    except msgspec.MsgspecError:
        return None


def become_rank(message: RejoinMessage) -> None:
    """Make this process the rank in the message: set its environment variables, and redirect the output.

    Where stdout and stderr went to the log that the message calls the previous one, they go to the rank's log from now
    on. They are left alone if either log cannot be opened.
    """
    os.environ.update(message.environment)
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    try:
        before = os.stat(message.log_before)
        new = os.open(message.log, os.O_CREAT | os.O_WRONLY | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    except OSError:
        return
    for number in (1, 2):
        now = os.fstat(number)
        if (now.st_dev, now.st_ino) == (before.st_dev, before.st_ino):
            os.dup2(new, number)
    os.close(new)


_LONGEST_S = 2e6  # what a poll can wait, 23 days


def await_rank(launched: Launched) -> None:
    """Wait in a reserve process until launch's message gives it a rank; do nothing in any other process.

    Exits the process if launch closes the pipes, or if no valid message comes within 23 days.
    """
    if launched.reserve is None:
        return
    control, wire = Control(launched.reserve.with_suffix(".control")), Wire(launched.reserve)
    wire.report(waits=True)
    message = control.wait(_LONGEST_S)
    if message is None:
        sys.exit(f"no valid message with a rank for this reserve process came in {_LONGEST_S:.0f} s")
    wire.close()
    control.close()
    become_rank(message)
    os.environ.pop("LAUNCH_RESERVE", None)
