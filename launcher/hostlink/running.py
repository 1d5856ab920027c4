"""A command on the other side: what it is given, what it says, how it ended."""

import os
import select
import shlex
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Self

from launcher.hostlink.by_paramiko.transport import BROKEN, Channel
from launcher.hostlink.failures import Lost
from launcher.hostlink.known_hosts import who
from launcher.hostlink.target import Target

_MOST = 256 * 1024
_PACKET = 32 * 1024
_SLICE_S = 0.05
_PLAIN = frozenset(b"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789 _./=:,@+-")


@dataclass(frozen=True, slots=True)
class Done:
    """How a command ended."""

    code: int | None  # 128 + n where signal n ended it; None: the connection ended before it was told
    out: bytes
    err: bytes


class Running:
    """A command there. All happens in the caller's thread: while that waits, what the command says is taken."""

    def __init__(self, target: Target, channel: Channel) -> None:
        self.target = target
        self._channel = channel
        self._out, self._err = bytearray(), bytearray()
        channel.settimeout(0.0)
        self._poll = select.poll()
        self._poll.register(channel.fileno(), select.POLLIN)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def feed(self, data: bytes, limit_s: float) -> bool:
        """Give it to its stdin; False where nobody takes it any more."""
        deadline = time.monotonic() + limit_s
        at = 0
        while at < len(data):
            self._take()
            try:
                sent = self._channel.send(data[at : at + _PACKET])
            except TimeoutError:
                self._wait_for_room(deadline)
                continue
            except BROKEN:
                return False
            if sent == 0:
                return False
            at += sent
        return True

    def write(self, data: bytes, limit_s: float = 60.0) -> None:
        """The same; raises Lost where nobody takes it."""
        if not self.feed(data, limit_s):
            raise Lost(f"{who(self.target)}: the command or the connection has ended")

    def close_stdin(self) -> None:
        try:
            self._channel.shutdown_write()
        except BROKEN:
            return  # what it says and how it ended still tell

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
        """Wait for its end, with its stdin closed. Raises Lost where that does not come in time."""
        deadline = time.monotonic() + limit_s
        self.close_stdin()
        self._wait_for(lambda: False, limit_s)
        if not self._channel.status_event.wait(max(0.0, deadline - time.monotonic())):
            raise self._late()
        self._take()
        code = self._channel.exit_status
        self.close()
        return Done(code if code >= 0 else None, bytes(self._out), bytes(self._err))

    def close(self) -> None:
        """Let go of it; it goes on there, with its pipes closed."""
        try:
            self._channel.close()
        except BROKEN:
            return

    def _wait_for(self, there: Callable[[], bool], limit_s: float) -> None:
        """Take what it says until that is there, or there is no more."""
        deadline = time.monotonic() + limit_s
        while not there():
            ended = self._channel.eof_received or self._channel.closed
            took = self._take()
            if ended:
                return
            if took:
                continue
            left = deadline - time.monotonic()
            if left <= 0:
                raise self._late()
            self._poll.poll(min(left, 1.0) * 1000)

    def _take(self) -> bool:
        """Whatever it has said so far."""
        before = len(self._out) + len(self._err)
        while self._channel.recv_ready():
            self._out += self._channel.recv(_MOST)
        while self._channel.recv_stderr_ready():
            self._err += self._channel.recv_stderr(_MOST)
        return len(self._out) + len(self._err) > before

    def _wait_for_room(self, deadline: float) -> None:
        if time.monotonic() >= deadline:
            raise self._late()
        with self._channel.lock:
            if self._channel.out_window_size == 0 and not self._channel.closed:
                self._channel.out_buffer_cv.wait(_SLICE_S)

    def _late(self) -> Lost:
        return Lost(f"{who(self.target)}: no answer in time: the command may still run there")


def command_line(argv: Sequence[str]) -> str:
    """For whatever shell the user has there: it sees one quoted word of harmless letters and leaves the rest to sh."""
    if any("\0" in word for word in argv):
        raise ValueError("a word of a command line with a NUL")
    line = os.fsencode(shlex.join(argv))
    safe = "".join(chr(byte) if byte in _PLAIN else f"\\0{byte:03o}" for byte in line)
    return f"""exec /bin/sh -c 'eval "$(printf %b "{safe}")"'"""
