"""Exchange messages between the server and its processes in frames: a length, then MessagePack.

Messages are plain data: nothing that comes over a socket is unpickled or run.
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
    """Raised if the other side closed in the middle of a frame, or sent bytes that are no frame."""


def frame(message: Any) -> bytes:
    """Return the message as a frame."""
    body = _encode(message)
    return _LENGTH.pack(len(body)) + body


def length_of(head: bytes) -> int:
    """Return the length of the body in a frame's header. Raises FrameBroken if it is more than 1 GiB."""
    (length,) = _LENGTH.unpack(head)
    if length > MOST_BYTES:
        raise FrameBroken(f"a frame of {length} bytes: expected at most {MOST_BYTES}")
    return int(length)


def message_in(body: bytes) -> Any:
    """Return the message in a frame's body. Raises FrameBroken if it cannot be decoded."""
    try:
        return _decode(body)
    except msgspec.DecodeError as error:
        raise FrameBroken(str(error)) from error


class MessageSocket:
    """A blocking end of a socket pair, over which messages and file descriptors are sent."""

    def __init__(self, end: socket.socket) -> None:
        self._end = end
        self._received_fds: list[int] = []

    def fileno(self) -> int:
        """Return the socket's descriptor."""
        return self._end.fileno()

    def send(self, message: Any, descriptors: Sequence[int] = ()) -> None:
        """Send a message, with copies of these file descriptors."""
        data = frame(message)
        sent = socket.send_fds(self._end, [data], list(descriptors)) if descriptors else 0
        self._end.sendall(data[sent:])

    def receive(self) -> Any:
        """Wait for the next message and return it, or None if the other side has closed.

        Raises FrameBroken if the frame is longer than 1 GiB or cannot be decoded.
        """
        head = self._read(HEAD_BYTES)
        return None if head is None else message_in(self._read(length_of(head)) or b"")

    def receive_socket(self) -> socket.socket:
        """Remove and return the first socket that came with the messages received so far.

        Nothing is received here. Raises FrameBroken if no socket is left.
        """
        if not self._received_fds:
            raise FrameBroken("expected a socket with it, got none")
        return socket.socket(fileno=self._received_fds.pop(0))

    def close(self) -> None:
        """Close the socket."""
        self._end.close()

    def _read(self, count: int) -> bytes | None:
        """Return exactly `count` bytes, or None if the other side has closed."""
        parts = bytearray()
        while len(parts) < count:
            data, fds, _, _ = socket.recv_fds(self._end, min(count - len(parts), 1 << 20), 4, socket.MSG_CMSG_CLOEXEC)
            self._received_fds += fds
            if not data:
                return None
            parts += data
        return bytes(parts)
