"""A command on another machine: its input, its output, and how it ended."""

import os
import shlex
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from types import TracebackType
from typing import Protocol, Self

from launcher.remote.failures import Broken, Silent

_PACKET = 32 * 1024
_TAIL_BYTES = 4096
_MOST_UNREAD, _MOST_ERR = 64 << 20, 16 << 20  # how much output is kept, as a hostile program may print for ever
_SLICE_S = 0.05
TURN_S = 1.0  # a Ctrl-C that comes just before a wait is noticed at its end only
_PLAIN = frozenset(b"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789 _./=:,@+-")
_ESCAPED = {byte: f"\\0{byte:03o}" for byte in range(256) if byte not in _PLAIN}


class Channel(Protocol):
    """A command that paramiko or OpenSSH has started; all work is done in the thread that calls a method."""

    @property
    def ready_fd(self) -> int:
        """Return a descriptor for waiting only: it is readable when `take` may have output to return."""

    def give(self, data: bytes, wait_s: float) -> int:
        """Write data to the command's stdin and return how many bytes were accepted within `wait_s`; raise EOFError if
        stdin is closed.
        """

    def end_input(self) -> None:
        """Close the command's stdin."""

    def take(self, wait_s: float) -> tuple[bytes, bytes] | None:
        """Return (new stdout, new stderr) as soon as there is any, or both empty after `wait_s` without any. Return
        None once both have ended and all was returned.
        """

    def code(self, wait_s: float) -> int | None:
        """Return the exit code, 128 + n for signal n, or -1 if the connection ended before the code was known. Return
        None if the command has not ended within `wait_s`.
        """

    def close(self) -> None:
        """Close the channel; the command continues on the other machine with its pipes closed."""


@dataclass(frozen=True, slots=True)
class Done:
    """The result of a command that has ended: its exit code, or None if unknown, its stdout and its stderr."""

    code: int | None  # 128 + n if signal n ended it; None: the connection ended before the code was known
    out: bytes
    err: bytes


class ClosedAtTheEnd:
    """A base class for objects whose `close` is called at the end of a `with`."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Release what the object holds, such as a connection."""


class Running(ClosedAtTheEnd):
    """A command on another machine. Its output is read only while a method of this class waits, in the caller's
    thread.
    """

    def __init__(self, who: str, channel: Channel) -> None:
        """Use a channel to a program on the host `who`, which messages name."""
        self.who = who
        self._channel = channel
        self._out, self._err = bytearray(), bytearray()
        self._ended = False  # there is no more output

    @property
    def ready_fd(self) -> int:
        """Return a descriptor for waiting only: it is readable when there may be new output."""
        return self._channel.ready_fd

    def feed(self, data: bytes, limit_s: float) -> bool:
        """Write all data to the command's stdin; return False if stdin is closed. Raise Silent if that takes longer
        than `limit_s`, and Broken if the command prints meanwhile and more than 64 MiB of its stdout are unread.
        """
        deadline = time.monotonic() + limit_s
        rest = memoryview(data)
        while rest:
            self._take(0.0)
            left = deadline - time.monotonic()
            try:
                given = self._channel.give(bytes(rest[:_PACKET]), min(_SLICE_S, max(left, 0.0)))
            except EOFError:
                return False
            if not given and left <= 0:
                raise self._no_answer_in_time()
            rest = rest[given:]
        return True

    def write(self, data: bytes, limit_s: float = 60.0) -> None:
        """Write all data to the command's stdin; raise Broken if stdin is closed, and Silent if that takes longer than
        `limit_s`.
        """
        if not self.feed(data, limit_s):
            raise Broken(f"{self.who}: the command or the connection has ended")

    def close_stdin(self) -> None:
        """Close the command's stdin; its output and exit code can still be read."""
        self._channel.end_input()

    def read(self, size: int, limit_s: float = 60.0) -> bytes:
        """Return up to `size` bytes of the command's stdout as soon as it has any, or b"" at its end. Raise Silent if
        none comes within `limit_s`, and Broken if more than 64 MiB are unread.
        """
        self._wait_for(lambda: bool(self._out), limit_s)
        data = bytes(self._out[:size])
        del self._out[:size]
        return data

    def readline(self, limit_s: float = 60.0) -> bytes:
        """Return a line of the command's stdout with its newline, or the rest at its end; raise Silent if neither comes
        within `limit_s`, and Broken if over 64 MiB of output are unread.
        """
        self._wait_for(lambda: b"\n" in self._out, limit_s)
        end = self._out.find(b"\n") + 1
        return self.read(end or len(self._out) or 1, 0.0)

    def finish(self, limit_s: float = 60.0) -> Done:
        """Close the command's stdin, wait until it ends, close the connection and return the result. Raise Silent if
        that takes longer than `limit_s`, and Broken if more than 64 MiB of stdout are unread.
        """
        deadline = time.monotonic() + limit_s
        self.close_stdin()
        self._wait_for(lambda: False, limit_s)
        code = self._channel.code(max(0.0, deadline - time.monotonic()))
        if code is None:
            raise self._no_answer_in_time()
        self._take(0.0)
        self.close()
        return Done(code if code >= 0 else None, bytes(self._out), bytes(self._err))

    def code(self, limit_s: float) -> int | None:
        """Return the exit code, 128 + n for signal n, or -1 if the connection ended before the code was known. Return
        None if the command has not ended within `limit_s`.
        """
        return self._channel.code(limit_s)

    def last_error_lines(self, most: int = 1) -> list[str]:
        """Return at most `most` of the last lines of the command's stderr, for a message."""
        lines = [line.strip() for line in bytes(self._err[-_TAIL_BYTES:]).decode(errors="replace").splitlines()]
        return [f"  {line[:500]}" for line in lines if line][-most:]

    def close(self) -> None:
        """Close the connection; the command continues on the other machine with its pipes closed."""
        self._channel.close()

    def _wait_for(self, there: Callable[[], bool], limit_s: float) -> None:
        """Read output until the condition `there` holds or the output has ended; raise Silent after `limit_s`, and
        Broken if more than 64 MiB of stdout are unread.
        """
        deadline = time.monotonic() + limit_s
        while not there() and not self._ended:
            left = deadline - time.monotonic()
            self._take(min(max(left, 0.0), TURN_S))
            if left <= 0 and not there() and not self._ended:
                raise self._no_answer_in_time()  # however much else it prints

    def _take(self, wait_s: float) -> bool:
        """Store output that comes within `wait_s`; return whether any came. Raise Broken if more than 64 MiB of stdout
        are unread.
        """
        said = None if self._ended else self._channel.take(wait_s)
        if said is None:
            self._ended = True
            return False
        self._out += said[0]
        self._err += said[1]
        del self._err[:-_MOST_ERR]
        if len(self._out) > _MOST_UNREAD:
            raise Broken(f"{self.who}: sends more than was requested")
        return bool(said[0] or said[1])

    def _no_answer_in_time(self) -> Silent:
        """Return the error, for the caller to raise, that a command did not answer in time and may still run."""
        return Silent(f"{self.who}: no answer in time: the command may still run there")


def command_line(argv: Sequence[str], *, told: bool = False) -> str:
    """Return the command as a line for any shell that the user may have on the other machine; raise ValueError for an
    argument with a NUL. The command is escaped, so that even csh or fish only pass it on to /bin/sh, which runs it.

    With `told`, sh reports a death by a signal as exit code 128 + n, for a transport that reports no signals.
    """
    if any("\0" in word for word in argv):
        raise ValueError("a word of a command line with a NUL")
    safe = _escaped(os.fsencode(shlex.join(argv)))
    end = "; exit $?" if told else ""
    return f"""exec /bin/sh -c 'eval "$(printf %b "{safe}")"{end}'"""


@lru_cache(maxsize=4)
def _escaped(line: bytes) -> str:
    """Return the line for printf's `%b`, in which all but letters, digits and a few other characters are octal escapes.

    It is cached, because many hosts are sent the same line at the same time.
    """
    return line.decode("latin-1").translate(_ESCAPED)
