"""A command on the other side: what it is given, what it says, how it ended."""

import os
import shlex
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Protocol, Self

from launcher.remote.failures import Broken, Silent

_PACKET = 32 * 1024
_TAIL_BYTES = 4096
_MOST_UNREAD, _MOST_ERR = 64 << 20, 16 << 20  # what is kept of what it says: whoever lies may say it for ever
_SLICE_S = 0.05
_TURN_S = 1.0  # a Ctrl-C that comes just before a wait is noticed at its end only
_PLAIN = frozenset(b"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789 _./=:,@+-")


class Channel(Protocol):
    """A command that a transport has started. Nothing of it is done but in the caller's thread."""

    @property
    def ready_fd(self) -> int:
        """A descriptor to wait on, and no more: readable when there may be something to take."""

    def give(self, data: bytes, wait_s: float) -> int:
        """How much of it went to its stdin, after some wait perhaps. Raises EOFError where nobody takes it any more."""

    def end_input(self) -> None:
        """It gets no more."""

    def take(self, wait_s: float) -> tuple[bytes, bytes] | None:
        """What it has said meanwhile on stdout and stderr; None once there will be no more."""

    def code(self, wait_s: float) -> int | None:
        """How it ended, 128 + n by signal n; -1: the connection ended before that was told; None: not yet."""

    def close(self) -> None:
        """Let go of it; it goes on there, with its pipes closed."""


@dataclass(frozen=True, slots=True)
class Done:
    """How a command ended."""

    code: int | None  # 128 + n where signal n ended it; None: the connection ended before it was told
    out: bytes
    err: bytes


class ClosedAtTheEnd:
    """What is closed at the end of a `with`."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Let go of it."""


class Running(ClosedAtTheEnd):
    """A command there. All happens in the caller's thread: while that waits, what the command says is taken."""

    def __init__(self, who: str, channel: Channel) -> None:
        """`who`: the host, for messages."""
        self.who = who
        self._channel = channel
        self._out, self._err = bytearray(), bytearray()
        self._ended = False  # it says no more

    @property
    def ready_fd(self) -> int:
        """A descriptor to wait on, and no more: readable when it may have said something."""
        return self._channel.ready_fd

    def feed(self, data: bytes, limit_s: float) -> bool:
        """Give it to its stdin; False where nobody takes it any more."""
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
                raise self._late()
            rest = rest[given:]
        return True

    def write(self, data: bytes, limit_s: float = 60.0) -> None:
        """Give it to its stdin. Raises Broken where nobody takes it any more."""
        if not self.feed(data, limit_s):
            raise Broken(f"{self.who}: the command or the connection has ended")

    def close_stdin(self) -> None:
        """What it says and how it ended still tell."""
        self._channel.end_input()

    def read(self, size: int, limit_s: float = 60.0) -> bytes:
        """Up to so many bytes of its stdout, as soon as there are any; empty at its end."""
        self._wait_for(lambda: bool(self._out), limit_s)
        data = bytes(self._out[:size])
        del self._out[:size]
        return data

    def readline(self, limit_s: float = 60.0) -> bytes:
        """A line of its stdout with its newline; what there is at the end of it."""
        self._wait_for(lambda: b"\n" in self._out, limit_s)
        end = self._out.find(b"\n") + 1
        return self.read(end or len(self._out) or 1, 0.0)

    def finish(self, limit_s: float = 60.0) -> Done:
        """Wait for its end, with its stdin closed. Raises Silent where that does not come in time."""
        deadline = time.monotonic() + limit_s
        self.close_stdin()
        self._wait_for(lambda: False, limit_s)
        code = self._channel.code(max(0.0, deadline - time.monotonic()))
        if code is None:
            raise self._late()
        self._take(0.0)
        self.close()
        return Done(code if code >= 0 else None, bytes(self._out), bytes(self._err))

    def code(self, limit_s: float) -> int | None:
        """How it ended, 128 + n by signal n; -1: the connection ended before that was told; None: not yet."""
        return self._channel.code(limit_s)

    def last_words(self, most: int = 1) -> list[str]:
        """The last lines of what it said on stderr, for a message: what ended it, or kept it from beginning."""
        lines = [line.strip() for line in bytes(self._err[-_TAIL_BYTES:]).decode(errors="replace").splitlines()]
        return [f"  {line[:500]}" for line in lines if line][-most:]

    def close(self) -> None:
        """Let go of it; it goes on there, with its pipes closed."""
        self._channel.close()

    def _wait_for(self, there: Callable[[], bool], limit_s: float) -> None:
        """Take what it says until that is there, or there is no more."""
        deadline = time.monotonic() + limit_s
        while not there() and not self._ended:
            left = deadline - time.monotonic()
            self._take(min(max(left, 0.0), _TURN_S))
            if left <= 0 and not there() and not self._ended:
                raise self._late()  # however much else it says

    def _take(self, wait_s: float) -> bool:
        """Whatever it says meanwhile; whether that was anything."""
        said = None if self._ended else self._channel.take(wait_s)
        if said is None:
            self._ended = True
            return False
        self._out += said[0]
        self._err += said[1]
        del self._err[:-_MOST_ERR]
        if len(self._out) > _MOST_UNREAD:
            raise Broken(f"{self.who}: says more than anybody has asked for")
        return bool(said[0] or said[1])

    def _late(self) -> Silent:
        return Silent(f"{self.who}: no answer in time: the command may still run there")


def command_line(argv: Sequence[str], *, told: bool = False) -> str:
    """For whatever shell the user has there: it sees one quoted word of harmless letters and leaves the rest to sh.

    `told`: a death by a signal is an exit code, for a transport that tells no signals.
    """
    if any("\0" in word for word in argv):
        raise ValueError("a word of a command line with a NUL")
    line = os.fsencode(shlex.join(argv))
    safe = "".join(chr(byte) if byte in _PLAIN else f"\\0{byte:03o}" for byte in line)
    end = "; exit $?" if told else ""
    return f"""exec /bin/sh -c 'eval "$(printf %b "{safe}")"{end}'"""
