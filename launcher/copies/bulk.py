"""Send and receive file contents over a socket in threads, so that the agent's heartbeat waits for no disk and no
peer.
"""

import contextlib
import os
import socket
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import BinaryIO

from launcher.wire.frames import WireError

PIECE_BYTES = 1 << 20
STALL_S = 20.0  # a peer that takes or gives nothing for so long is dropped
_THREADS = 128  # one for each peer that fetches here, few at most times: they are made when they are needed
_NICENESS = 10  # ranks of this node come first

Heard = Callable[[int], None]


def new_pool() -> ThreadPoolExecutor:
    """Return a pool of threads for copying, to which the kernel gives processor time only after all others."""
    return ThreadPoolExecutor(_THREADS, "server", initializer=lower_priority)


def lower_priority() -> None:
    """Give this thread the lowest scheduling priority."""
    with contextlib.suppress(OSError):  # already as low as that, or forbidden: copying works as well
        os.setpriority(os.PRIO_PROCESS, 0, _NICENESS)  # of this thread alone: Linux keeps it by thread


class Throttle:
    """A limit on the bytes per second that all transfers of this node send together; a `limit_bytes_per_s` of None
    means no limit.
    """

    def __init__(self, limit_bytes_per_s: float | None = None) -> None:
        self._limit = limit_bytes_per_s
        self._free_at = 0.0

    @property
    def piece_bytes(self) -> int:
        """Return how many bytes to send at a time: at most what the limit allows in half a second."""
        return PIECE_BYTES if self._limit is None else max(1, min(PIECE_BYTES, int(self._limit / 2)))

    def pay(self, count: int) -> None:
        """Count `count` bytes as sent, and sleep until the limit permits more; without a limit, return at once."""
        if self._limit is None:
            return
        now = time.monotonic()
        self._free_at = max(self._free_at, now) + count / self._limit
        time.sleep(self._free_at - now)


def send_bytes(peer: socket.socket, data: bytes) -> None:
    """Send all of the data to the peer; raise OSError if the connection fails or its time limit passes."""
    peer.sendall(data)


def send_file(peer: socket.socket, file: BinaryIO, size: int, pace: Throttle, unwanted: Callable[[], bool]) -> bool:
    """Send exactly `size` bytes from the beginning of the file at the pace of the throttle; raise WireError if the file
    is shorter. `unwanted` is called before each piece; once it returns True, stop sending and return False.
    """
    sent = 0
    while sent < size:
        if unwanted():
            return False
        count = peer.sendfile(file, sent, min(pace.piece_bytes, size - sent))
        if not count:
            raise WireError(f"a file ended after {sent} of {size} bytes")
        sent += count
        pace.pay(count)
    return True


def receive(peer: socket.socket, size: int, heard: Heard = lambda _: None) -> Iterator[memoryview]:
    """Yield exactly `size` bytes in pieces, each valid until the next is requested; raise WireError if the peer sends
    fewer.

    `heard` is called with the size of each piece. An error of this node's disk stays an OSError, so that it is not
    taken for the peer's.
    """
    buffer = memoryview(bytearray(min(size, PIECE_BYTES)))
    left = size
    while left:
        wanted, filled = min(left, PIECE_BYTES), 0
        while filled < wanted:
            filled += _read(peer, buffer[filled:wanted], left - filled, size)
        left -= wanted
        heard(wanted)
        yield buffer[:wanted]


def receive_all(peer: socket.socket, size: int) -> bytes:
    """Return exactly `size` bytes; raise WireError if the peer sends fewer."""
    return b"".join(bytes(piece) for piece in receive(peer, size))


def drain(peer: socket.socket, seconds: float) -> None:
    """Receive and drop what the peer still sends, for at most `seconds`, so that a reset of the connection does not
    destroy the last message to it.
    """
    end = time.monotonic() + seconds
    buffer = bytearray(PIECE_BYTES)
    with contextlib.suppress(OSError):
        while (left_s := end - time.monotonic()) > 0:
            peer.settimeout(left_s)
            if not peer.recv_into(buffer):
                return


def _read(peer: socket.socket, into: memoryview, left: int, size: int) -> int:
    """Wait until bytes have come, put as many as fit into the buffer `into`, and return their number; raise WireError
    if the peer has closed. `left` and `size`, how many bytes are missing and how many were to come, are for the error's
    text.
    """
    try:
        count = peer.recv_into(into)
    except OSError as error:
        raise WireError(f"the peer was cut off after {size - left} of {size} bytes: {error}") from error
    if not count:
        raise WireError(f"the peer left after {size - left} of {size} bytes")
    return count
