"""Share between a coordinator and its supervisor how much of the run's history, its file of events, half of a pool's
voters have copied.
"""

import time
from math import inf

from launcher.states import State

COPIED_S = 0.5  # for a restart to wait for copies; hosts that answer take hundredths of that
ANNOUNCED = (State.SUCCEEDED, State.FAILED)  # ends of a run that half of the voters have before they are written
_LOOK_S = 0.005


class HistoryCopies:
    """A number in memory that the coordinator and its supervisor share: `copied`, the number of bytes from the start of
    the history that at least half of the voters have.

    The supervisor, which copies the history to other hosts, sets it; the coordinator waits for it in `await_half`.
    """

    def __init__(self, shared: "memoryview[float] | None" = None) -> None:
        """Use this shared double, or without it private memory in which the whole history counts as copied."""
        self._shared = memoryview(bytearray(8)).cast("d") if shared is None else shared
        if shared is None:
            self.copied = inf

    @property
    def copied(self) -> float:
        """Return how many bytes of the history at least half of the voters have, the leader included; infinity if no
        other host is to have a copy.
        """
        return self._shared[0]

    @copied.setter
    def copied(self, size: float) -> None:
        """Set how many bytes of the history at least half of the voters have, the leader included; infinity if no other
        host is to have a copy.
        """
        self._shared[0] = size

    def await_half(self, size: float, within_s: float) -> bool:
        """Block for up to `within_s` seconds until at least half of the voters have the first `size` bytes of the
        history; return whether they have.
        """
        until = time.monotonic() + within_s
        while self.copied < size and time.monotonic() < until:
            time.sleep(_LOOK_S)
        return self.copied >= size
