"""The clock that leases are kept by, and what of it a process has slept through."""

import time
from collections.abc import Callable

STEP_S = 2.0


def boottime() -> float:
    """Seconds since this machine was started, those too in which it was suspended: others did not wait meanwhile."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


class WakingClock:
    """A clock that stands still while its own process does: frozen, starved, or on a machine that is suspended.

    Whoever waits for others by it gives them as long as it was there to hear them. It has to be looked at often: what
    is beyond STEP_S between two looks was sleep.
    """

    def __init__(self, clock: Callable[[], float] = boottime) -> None:
        self._clock = clock
        self._looked_at = clock()
        self.slept_s = 0.0  # in all

    def now(self) -> float:
        at = self._clock()
        self.slept_s += max(0.0, at - self._looked_at - STEP_S)
        self._looked_at = at
        return at - self.slept_s
