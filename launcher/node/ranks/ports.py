"""Holding a free port for MASTER_PORT: bound but not listening, outside the range the kernel hands out by itself.

The rank that listens on it later binds with SO_REUSEADDR, as torch's store does, which the kernel allows beside a
bound socket that does not listen; nobody else is given the port meanwhile.
"""

import random
import socket
from collections.abc import Iterator
from itertools import islice

_FIRST, _LAST = 20_000, 32_000  # below Linux's default ephemeral range, 32768..60999
_TRIES = 64


class HeldPort:
    """A port kept free on one address until it is let go."""

    def __init__(self, address: str, number: int | None = None) -> None:
        """Take this port, or draw one that nobody has. Raises OSError where another program has it."""
        self._socket = socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET, socket.SOCK_STREAM)
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if number is None:
            self.number = _bind(self._socket, address)
            return
        self.number = number
        try:
            self._socket.bind((address, number))
        except OSError:
            self._socket.close()
            raise

    def release(self) -> None:
        self._socket.close()


def drawn() -> Iterator[int]:
    """Yield numbers of ports at random, for another machine, where nobody can see which are free."""
    draw = random.SystemRandom()
    while True:
        yield draw.randint(_FIRST, _LAST)


def _bind(held: socket.socket, address: str) -> int:
    for port in islice(drawn(), _TRIES):
        # Two sockets that reuse may share a port: only one that does not proves that it is free.
        with socket.socket(held.family, socket.SOCK_STREAM) as probe:
            try:
                probe.bind((address, port))
            except OSError:
                continue
        try:
            held.bind((address, port))
        except OSError:
            continue
        return port
    held.bind((address, 0))
    return int(held.getsockname()[1])
