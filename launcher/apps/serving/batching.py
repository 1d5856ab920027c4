"""The queue of inputs: it decides which inputs are computed together and when, and refuses inputs if there are too
many. Equal inputs that wait, or are being computed, are one entry, whose answer goes to all clients that sent them.
Pure: all times are passed in, in seconds of one monotonic clock.
"""

import math
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

Key = bytes  # equal inputs have equal ones
Client = TypeVar("Client")
_LONGEST_RETRY_S = 60


class AnswerCache:
    """Cached answers. Those older than `keep_s` seconds are dropped and, beyond `size`, the least recently used
    ones.
    """

    def __init__(self, size: int, keep_s: float) -> None:
        self._size, self._keep_s = size, keep_s
        self._answers: OrderedDict[Key, tuple[float, bytes]] = OrderedDict()
        self.hits = 0
        self.misses = 0

    def __len__(self) -> int:
        return len(self._answers)

    def get(self, key: Key, now: float) -> bytes | None:
        """Return the cached answer, or None if there is none or it is too old at time `now`."""
        found = self._answers.get(key)
        if found is not None and now - found[0] < self._keep_s:
            self._answers.move_to_end(key)
            self.hits += 1
            return found[1]
        if found is not None:
            del self._answers[key]
        self.misses += 1
        return None

    def put(self, key: Key, answer: bytes, now: float) -> None:
        """Cache an answer at time `now`, and drop the least recently used ones beyond `size`; with a `size` of 0
        nothing is cached.
        """
        if self._size:
            self._answers[key] = (now, answer)
            self._answers.move_to_end(key)
            while len(self._answers) > self._size:
                self._answers.popitem(last=False)

    def clear(self) -> None:
        """Drop all answers; they are those of another model than the present one."""
        self._answers.clear()


@dataclass(eq=False, slots=True)
class WantedAnswer(Generic[Client]):
    """A distinct input (`payload`) that waits since `since`, and the clients that wait for its answer."""

    key: Key  # equal for equal inputs
    payload: Any
    since: float
    clients: list[Client] = field(default_factory=list)


class Batcher(Generic[Client]):
    """The queue of inputs. A batch is due once there are `size` distinct inputs, or the first of them has waited
    `wait_s` seconds.
    """

    def __init__(self, size: int, wait_s: float, most_waiting: int) -> None:
        self._size, self._wait_s, self._most = size, wait_s, most_waiting
        self._queue: OrderedDict[Key, WantedAnswer[Client]] = OrderedDict()
        self._computed: dict[Key, WantedAnswer[Client]] = {}
        self._clients = 0
        self.shared = 0  # how often somebody joined those who wait for an equal input

    @property
    def waiting(self) -> int:
        """The number of clients without an answer, including those whose input is being computed."""
        return self._clients

    @property
    def queued(self) -> int:
        """The number of distinct inputs that no worker has taken."""
        return len(self._queue)

    def takes(self, count: int) -> bool:
        """Return whether a request with `count` more inputs is accepted: with it at most `most_waiting` inputs may be
        without an answer, in the queue or being computed. If none is, a request of any size is accepted.
        """
        return self._clients + count <= self._most or self._clients == 0

    def ask(self, key: Key, payload: Any, client: Client, now: float) -> None:
        """Add the input `payload` to the queue at time `now`; if an equal one, known by its `key`, waits or is being
        computed, only add `client` to the clients of that.

        Nothing is refused here: the caller has asked `takes` whether the inputs of its request may wait.
        """
        known = self._queue.get(key) or self._computed.get(key)
        if known is None:
            known = self._queue[key] = WantedAnswer(key, payload, now)
        else:
            self.shared += 1
        known.clients.append(client)
        self._clients += 1

    def withdraw(self, key: Key, client: Client) -> None:
        """Remove a client that has disconnected from the clients of the input with this key.

        An input in the queue for which no client waits any more is dropped; one that is being computed goes on.
        """
        wanted = self._queue.get(key) or self._computed.get(key)
        if wanted is None or client not in wanted.clients:
            return
        wanted.clients.remove(client)
        self._clients -= 1
        if not wanted.clients and key in self._queue:
            del self._queue[key]

    def due_at(self) -> float | None:
        """Return the time at which the next batch is due at the latest, or None if nothing waits."""
        if not self._queue:
            return None
        first = next(iter(self._queue.values()))
        return first.since if len(self._queue) >= self._size else first.since + self._wait_s

    def take(self, now: float) -> list[WantedAnswer[Client]]:
        """Take the batch that is due at time `now` from the queue, at most `size` inputs, for an idle worker; return an
        empty list if none is due. The inputs count as being computed from then on.
        """
        due = self.due_at()
        if due is None or now < due:
            return []
        batch = [self._queue.popitem(last=False)[1] for _ in range(min(self._size, len(self._queue)))]
        self._computed |= {wanted.key: wanted for wanted in batch}
        return batch

    def put_back(self, batch: "Sequence[WantedAnswer[Client]]") -> None:
        """Put the inputs of a batch back at the front of the queue, because the batch's worker ended before it started
        to compute them. An input for which no client waits any more is dropped.
        """
        for wanted in reversed(batch):
            del self._computed[wanted.key]
            if wanted.clients:
                self._queue[wanted.key] = wanted
                self._queue.move_to_end(wanted.key, last=False)

    def settle(self, batch: Sequence[WantedAnswer[Client]]) -> None:
        """Remove a batch from the inputs that are being computed, because they were answered or never will be; equal
        inputs that come later are computed anew.
        """
        for wanted in batch:
            self._clients -= len(wanted.clients)
            del self._computed[wanted.key]


class BatchPace:
    """The seconds that an input takes to compute, as a moving mean over batches. A client whose inputs are refused is
    told by it when to retry.
    """

    def __init__(self, weight: float = 0.2) -> None:
        self._weight = weight
        self._each_s: float | None = None

    def took(self, seconds: float, inputs: int) -> None:
        """Include in the mean a batch of `inputs` inputs that took `seconds`."""
        each = seconds / inputs
        self._each_s = each if self._each_s is None else self._each_s + self._weight * (each - self._each_s)

    def retry_after_s(self, waiting: int, workers: int) -> int:
        """Return the value of a Retry-After header: in how many seconds `workers` workers will have answered the inputs
        of `waiting` clients, at least 1 and at most `_LONGEST_RETRY_S`.
        """
        seconds = waiting * (self._each_s or 0.0) / max(1, workers)
        return max(1, min(math.ceil(seconds), _LONGEST_RETRY_S))
