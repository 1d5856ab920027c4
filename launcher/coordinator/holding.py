"""Hold a restart back until half of a pool's voters have the record of the failure that it follows."""

from collections.abc import Iterable
from math import inf

from launcher.coordinator.effects import Finish, Out, Record, Send
from launcher.coordinator.history_copies import HistoryCopies
from launcher.wire import messages


class RestartHold:
    """Holds back the message that begins a restart, and all later ones, until `release`.

    A leader that takes over then knows of the failure, and counts it against its budget. The coordinator sees no more
    than a slower network.
    """

    def __init__(self, copies: HistoryCopies) -> None:
        self._copies = copies
        self._failures = 0  # that were recorded
        self._is_new = False  # the newest has no restart yet
        self._held: list[Out] | None = None

    @property
    def holds(self) -> bool:
        """Return whether messages are being held back."""
        return self._held is not None

    def pass_on(self, effects: Iterable[Out]) -> list[Out]:
        """Return the effects to carry out now, and keep the others; answers to heartbeats are never held back."""
        now: list[Out] = []
        for effect in effects:
            match effect:
                case Record(event=event) if event.kind == "failure":
                    self._failures += 1
                    self._is_new = self._copies.awaited = self._copies.copied < inf
                case Send(message=messages.Start() | messages.ContinueInPlace()) if self._is_new and not self.holds:
                    self._held = []
                case Finish():
                    now += self.release()
            waits = isinstance(effect, Send) and not isinstance(effect.message, messages.HeartbeatAck)
            (self._held if waits and self._held is not None else now).append(effect)
        return now

    def is_copied(self, failures: int, history_bytes: int) -> bool:
        """Return whether half of the voters have the newest failure, given how many failures are on this disk and the
        size of the history up to the last of them.
        """
        return failures == self._failures and self._copies.copied >= history_bytes

    def release(self) -> list[Out]:
        """Stop holding messages back, and return those that were."""
        held, self._held, self._is_new = self._held or [], None, False
        self._copies.awaited = False
        return held
