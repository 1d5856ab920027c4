"""What the server and its processes say to each other: messages in frames, a length and then MessagePack.

Plain data only: nothing that comes over a socket is ever unpickled or run.
"""

import socket
import struct
from collections.abc import Sequence
from typing import Any

import msgspec

_LENGTH = struct.Struct("!I")
HEAD_BYTES = _LENGTH.size
MOST_BYTES = 1 << 30

_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder().decode


class FrameBroken(Exception):
    """The other side has left in the middle of a frame, or says what is none."""


def frame(message: Any) -> bytes:
    body = _encode(message)
    return _LENGTH.pack(len(body)) + body


def length_of(head: bytes) -> int:
    (length,) = _LENGTH.unpack(head)
    if length > MOST_BYTES:
        raise FrameBroken(f"a frame of {length} bytes: expected at most {MOST_BYTES}")
    return int(length)


def message_in(body: bytes) -> Any:
    try:
        return _decode(body)
    except msgspec.DecodeError as error:
        raise FrameBroken(str(error)) from error


class Talk:
    """One end of a socket pair that waits for its turn to be told something; descriptors may come along."""

    def __init__(self, end: socket.socket) -> None:
        self._end = end
        self._handed: list[int] = []

    def fileno(self) -> int:
        return self._end.fileno()

    def say(self, message: Any, hand: Sequence[int] = ()) -> None:
        """`hand`: descriptors that the other side gets copies of."""
        data = frame(message)
        sent = socket.send_fds(self._end, [data], list(hand)) if hand else 0
        self._end.sendall(data[sent:])

    def hear(self) -> Any:
        """The next message; None where the other side has left."""
        head = self._read(HEAD_BYTES)
        return None if head is None else message_in(self._read(length_of(head)) or b"")

    def handed(self) -> socket.socket:
        """The socket that came with the last message."""
        if not self._handed:
            raise FrameBroken("expected a socket with it, got none")
        return socket.socket(fileno=self._handed.pop(0))

    def close(self) -> None:
        self._end.close()

    def _read(self, count: int) -> bytes | None:
        parts = bytearray()
        while len(parts) < count:
            data, fds, _, _ = socket.recv_fds(self._end, min(count - len(parts), 1 << 20), 4, socket.MSG_CMSG_CLOEXEC)
            self._handed += fds
            if not data:
                return None
            parts += data
        return bytes(parts)
