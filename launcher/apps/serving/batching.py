"""Which inputs wait, which are computed together and when, and who is told that there are too many. Time is given.

Equal inputs that wait, or are being computed, are one: whoever asks for one of them waits for the same answer.
"""

import math
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

Key = bytes  # equal inputs have equal ones
Ticket = TypeVar("Ticket")
_LONGEST_RETRY_S = 60


@dataclass(eq=False, slots=True)
class WantedAnswer(Generic[Ticket]):
    """One distinct input, and those who wait for its answer."""

    key: Key
    payload: Any
    since: float
    tickets: list[Ticket] = field(default_factory=list)


class Batcher(Generic[Ticket]):
    """A batch is due when there are `size` distinct inputs, or when the first of them has waited `wait_s`."""

    def __init__(self, size: int, wait_s: float, most_waiting: int) -> None:
        self._size, self._wait_s, self._most = size, wait_s, most_waiting
        self._queue: OrderedDict[Key, WantedAnswer[Ticket]] = OrderedDict()
        self._computed: dict[Key, WantedAnswer[Ticket]] = {}
        self._tickets = 0
        self.shared = 0  # how often somebody joined those who wait for an equal input

    @property
    def waiting(self) -> int:
        """Tickets without an answer, those that are being computed for included."""
        return self._tickets

    @property
    def queued(self) -> int:
        """Distinct inputs that no worker has yet."""
        return len(self._queue)

    def takes(self, count: int) -> bool:
        """Whether so many more may wait. Who asks for more than may ever wait is let in where nobody else waits."""
        return self._tickets + count <= self._most or self._tickets == 0

    def ask(self, key: Key, payload: Any, ticket: Ticket, now: float) -> None:
        known = self._queue.get(key) or self._computed.get(key)
        if known is None:
            known = self._queue[key] = WantedAnswer(key, payload, now)
        else:
            self.shared += 1
        known.tickets.append(ticket)
        self._tickets += 1

    def withdraw(self, key: Key, ticket: Ticket) -> None:
        """Its client has left: what nobody waits for any more is not computed."""
        wanted = self._queue.get(key) or self._computed.get(key)
        if wanted is None or ticket not in wanted.tickets:
            return
        wanted.tickets.remove(ticket)
        self._tickets -= 1
        if not wanted.tickets and key in self._queue:
            del self._queue[key]

    def due_at(self) -> float | None:
        """When the next batch is due at the latest; None while nothing waits."""
        if not self._queue:
            return None
        first = next(iter(self._queue.values()))
        return first.since if len(self._queue) >= self._size else first.since + self._wait_s

    def take(self, now: float) -> list[WantedAnswer[Ticket]]:
        """The batch that is due, for a worker that is free; nothing before that."""
        due = self.due_at()
        if due is None or now < due:
            return []
        batch = [self._queue.popitem(last=False)[1] for _ in range(min(self._size, len(self._queue)))]
        self._computed |= {wanted.key: wanted for wanted in batch}
        return batch

    def put_back(self, batch: "Sequence[WantedAnswer[Ticket]]") -> None:
        """Their worker ended before it had begun with them: they are the next ones again."""
        for wanted in reversed(batch):
            del self._computed[wanted.key]
            if wanted.tickets:
                self._queue[wanted.key] = wanted
                self._queue.move_to_end(wanted.key, last=False)

    def settle(self, batch: Sequence[WantedAnswer[Ticket]]) -> None:
        """They were answered, or never will be."""
        for wanted in batch:
            self._tickets -= len(wanted.tickets)
            del self._computed[wanted.key]


class BatchPace:
    """How long an input takes, by a moving mean over batches: what to tell those who are sent away."""

    def __init__(self, weight: float = 0.2) -> None:
        self._weight = weight
        self._each_s: float | None = None

    def took(self, seconds: float, inputs: int) -> None:
        each = seconds / inputs
        self._each_s = each if self._each_s is None else self._each_s + self._weight * (each - self._each_s)

    def retry_after_s(self, waiting: int, workers: int) -> int:
        """Whole seconds, as the header has them, until those who wait now have had their turn."""
        seconds = waiting * (self._each_s or 0.0) / max(1, workers)
        return max(1, min(math.ceil(seconds), _LONGEST_RETRY_S))
