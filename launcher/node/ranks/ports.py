"""Hold a free port for MASTER_PORT: bound but not listening, outside the range from which the kernel assigns ports.

The rank that listens on the port later binds with SO_REUSEADDR, as torch's store does. The kernel permits that beside a
bound socket that does not listen, and assigns the port to no other program meanwhile.
"""

import random
import socket
from collections.abc import Callable, Iterator
from itertools import islice

_FIRST, _LAST = 20_000, 32_000  # below Linux's default ephemeral range, 32768..60999
_TRIES = 64


class HeldPort:
    """A port that is kept free on one address until `release`."""

    def __init__(self, address: str, number: int | None = None) -> None:
        """Bind port `number`, or a random free port for None; raise OSError if another program has it."""
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
        """Stop holding the port."""
        self._socket.close()


def random_ports(draw: random.Random | None = None) -> Iterator[int]:
    """Yield random port numbers without end, drawn from `draw` if given, from outside the range that the kernel
    assigns; any of them may be in use.
    """
    draw = draw or random.SystemRandom()
    while True:
        yield draw.randint(_FIRST, _LAST)


def address_drawer(seed: str) -> Callable[[str], str]:
    """Return a function that takes a host's address and returns it with a random port, HOST:PORT, which the function
    has not returned before. The same seed gives the same ports in the same order.
    """
    numbers, taken = random_ports(random.Random(seed)), set[str]()  # noqa: S311 - it tells several hosts the same, no secret

    def draw(address: str) -> str:
        """Return the address with a port that has not been drawn for it before."""
        found = next(one for one in (f"{address}:{number}" for number in numbers) if one not in taken)
        taken.add(found)
        return found

    return draw


def _bind(held: socket.socket, address: str) -> int:
    """Bind the socket to a random free port of `address` and return the port's number; if no random one is free, take
    one that the kernel assigns.
    """
    for port in islice(random_ports(), _TRIES):
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
