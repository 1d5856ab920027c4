"""Limits on what the clients of a server may occupy, and the choice of the connection to drop beyond them."""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

Held = TypeVar("Held")


@dataclass(frozen=True)
class Limits:
    """The limits of one server; a connection that has carried the token counts for neither of the first two."""

    connections: int = 256
    per_address: int = 64
    head_s: float = 5.0  # for a request without its body, and for a TLS handshake
    head_bytes: int = 32 << 10
    headers: int = 100
    body_s: float = 30.0
    body_bytes: int = 1 << 20
    drained_bytes: int = 256 << 10  # of a body that nobody reads, as its request was refused
    bodies_bytes: int = 16 << 20  # of all bodies that are being read
    take_s: float = 60.0  # in which a client takes the next piece of an answer
    idle_s: int = 75  # between two requests: longer than clients and proxies usually keep a connection
    pipelined: int = 16  # requests of one connection that are sent before the first is answered


class UnprovedConnections(Generic[Held]):
    """The connections that have not carried the token, oldest first."""

    def __init__(self, most: int, per_address: int) -> None:
        self._most, self._per_address = most, per_address
        self._address_of: dict[Held, str] = {}
        self._counts: Counter[str] = Counter()

    def __len__(self) -> int:
        return len(self._address_of)

    def add(self, connection: Held, address: str) -> None:
        """Add a connection from `address` as the newest, also if it was in the list before."""
        self.discard(connection)
        self._address_of[connection] = address
        self._counts[address] += 1

    def are_too_many(self, address: str) -> bool:
        """Return whether more connections are in the list than may be, from `address` or in total."""
        return self._counts[address] > self._per_address or len(self) > self._most

    def discard(self, connection: Held) -> None:
        """Remove a connection from the list, if the list has it."""
        address = self._address_of.pop(connection, None)
        if address is not None:
            self._counts[address] -= 1
            if not self._counts[address]:
                del self._counts[address]

    def oldest(self, address: str, may_go: Callable[[Held], bool] = lambda _: True) -> Held | None:
        """Return the oldest connection that may be dropped, or None if none may.

        It is one of `address` if that has too many, else one of the address that has the most.
        """
        if not self._address_of:
            return None
        of = address if self._counts[address] > self._per_address else self._counts.most_common(1)[0][0]
        return next((one for one, other in self._address_of.items() if other == of and may_go(one)), None)
