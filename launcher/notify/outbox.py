"""What one recipient still has to be told, and when it is tried again: pure, and time comes in as a value."""

from collections import deque

from launcher.notify.message import Message

_FIRST_S, _LONGEST_S, _DOUBLINGS = 2.0, 300.0, 10
GIVE_UP_S = 6 * 3600.0  # news of the day before is none


class Outbox:
    """First in, first out: what does not go out holds up what follows, and nobody else."""

    def __init__(self) -> None:
        self._waiting: deque[tuple[Message, float]] = deque()  # and since when
        self._seen: set[str] = set()
        self.tries = 0
        self._next_at = 0.0
        self._longest_s = _LONGEST_S

    def put(self, message: Message, now: float) -> None:
        """Whatever has been put in before is not put in again."""
        if message.key not in self._seen:
            self._seen.add(message.key)
            self._waiting.append((message, now))

    def to_try(self, now: float) -> Message | None:
        return self._waiting[0][0] if self._waiting and now >= self._next_at else None

    @property
    def empty(self) -> bool:
        return not self._waiting

    def done(self) -> None:
        """The first one went out, or never will."""
        self._waiting.popleft()
        self.tries, self._next_at = 0, 0.0

    def rest(self) -> list[Message]:
        return [message for message, _ in self._waiting]

    def failed(self, now: float, after_s: float = 0.0) -> bool:
        """The first one did not go out now; True where it is not to be tried again."""
        pause_s = min(_FIRST_S * 2 ** min(self.tries, _DOUBLINGS), self._longest_s)
        self.tries += 1
        self._next_at = now + max(pause_s, min(after_s, self._longest_s))
        return now - self._waiting[0][1] >= GIVE_UP_S

    def hurry(self, longest_s: float, now: float) -> None:
        """There is little time left: try now, and wait no longer than that in between."""
        self._longest_s, self._next_at = longest_s, min(self._next_at, now)
