"""Limits on the connections and bytes that clients of a server may occupy, and the choice of the connection to drop."""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

Held = TypeVar("Held")


@dataclass(frozen=True)
class Limits:
    """The limits of one server: seconds and bytes for the head and the body of a request, seconds to read a response
    (`take_s`), and idle seconds. `drained_bytes` limits a body that nobody reads, `bodies_bytes` all bodies together,
    and `pipelined` unanswered requests.

    `connections` (in total) and `per_address` count only connections on which no request has had the server's token
    yet.
    """

    connections: int = 256  # in total
    per_address: int = 64  # from one client address
    head_s: float = 5.0  # for the head of a request, and for a TLS handshake
    head_bytes: int = 32 << 10
    headers: int = 100  # how many a request may have
    body_s: float = 30.0
    body_bytes: int = 1 << 20
    drained_bytes: int = 256 << 10  # of a body that nobody reads because its request was refused
    bodies_bytes: int = 16 << 20  # of all bodies that are being read
    take_s: float = 60.0  # within which a client must read the next part of a response
    idle_s: int = 75  # between two requests: longer than clients and proxies usually keep a connection
    pipelined: int = 16  # requests of one connection that arrive before the first was answered


class UnprovedConnections(Generic[Held]):
    """The connections on which no request has had the server's token yet, oldest first: at most `most` in total, and
    `per_address` from one client address. The list only counts and chooses; its owner drops connections.
    """

    def __init__(self, most: int, per_address: int) -> None:
        self._most, self._per_address = most, per_address
        self._address_of: dict[Held, str] = {}
        self._counts: Counter[str] = Counter()

    def __len__(self) -> int:
        return len(self._address_of)

    def add(self, connection: Held, address: str) -> None:
        """Add a connection from `address` as the newest, even if it is in the list; nothing is dropped for it, so that
        the list may then have one too many.
        """
        self.discard(connection)
        self._address_of[connection] = address
        self._counts[address] += 1

    def are_too_many(self, address: str) -> bool:
        """Return whether there are more connections than allowed, from `address` or in total."""
        return self._counts[address] > self._per_address or len(self) > self._most

    def discard(self, connection: Held) -> None:
        """Remove a connection from the list, if the list has it."""
        address = self._address_of.pop(connection, None)
        if address is not None:
            self._counts[address] -= 1
            if not self._counts[address]:
                del self._counts[address]

    def oldest(self, address: str, may_go: Callable[[Held], bool] = lambda _: True) -> Held | None:
        """Return the oldest connection to drop, one for which `may_go` returns True; None if there is none.

        Only connections of one address are considered: of `address` if it has more than `per_address`, else of the
        address that has the most.
        """
        if not self._address_of:
            return None
        of = address if self._counts[address] > self._per_address else self._counts.most_common(1)[0][0]
        return next((one for one, other in self._address_of.items() if other == of and may_go(one)), None)
