"""What the clients of a server may hold, and which connection goes when they hold too much. Pure."""

from collections import Counter
from dataclasses import dataclass
from typing import Generic, TypeVar

Held = TypeVar("Held")


@dataclass(frozen=True)
class Limits:
    """The bounds of one server. A connection that has carried the token counts for neither of the first two."""

    connections: int = 256
    per_address: int = 64
    head_s: float = 5.0  # for a request without its body, and for a TLS handshake
    head_bytes: int = 32 << 10
    headers: int = 100
    body_s: float = 30.0
    body_bytes: int = 1 << 20
    bodies_bytes: int = 16 << 20  # of all bodies that are being read
    take_s: float = 60.0  # in which a client takes the next piece of an answer
    idle_s: int = 75  # between two requests: longer than clients and proxies usually keep a connection
    pipelined: int = 16  # requests of one connection that are sent before the first is answered
    anyone: bool = False  # may ask without a token: then a connection that is being answered does not count either


class UnprovedConnections(Generic[Held]):
    """The connections that have not carried the token, oldest first."""

    def __init__(self, most: int, per_address: int) -> None:
        self._most, self._per_address = most, per_address
        self._address_of: dict[Held, str] = {}
        self._counts: Counter[str] = Counter()

    def __len__(self) -> int:
        return len(self._address_of)

    def add(self, connection: Held, address: str) -> Held | None:
        """Add it as the newest, and return the one that has to be dropped for it, or None."""
        self.discard(connection)
        self._address_of[connection] = address
        self._counts[address] += 1
        if self._counts[address] > self._per_address:
            return self.oldest(address)
        return self.oldest() if len(self) > self._most else None

    def discard(self, connection: Held) -> None:
        """Take it out, if it is there."""
        address = self._address_of.pop(connection, None)
        if address is not None:
            self._counts[address] -= 1
            if not self._counts[address]:
                del self._counts[address]

    def oldest(self, address: str | None = None) -> Held | None:
        """Return the oldest of `address`, or of the address that has the most; None where there is none."""
        if not self._address_of:
            return None
        of = self._counts.most_common(1)[0][0] if address is None else address
        return next((one for one, other in self._address_of.items() if other == of), None)
