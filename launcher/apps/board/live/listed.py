"""The list of all runs, read anew only where it may have changed: the board asks for it twice a second."""

import time
from collections.abc import Callable

from launcher import api
from launcher.run import registry

_ANEW_S = 4.0  # its names are looked at all the same: not every file system tells of a change by a folder's time
_SETTLED_NS = 2_000_000_000  # a folder's time that is older than this is not given to a later change too


class ListedRuns:
    """All runs of this user, by id. The same dict is returned until a run is registered or forgotten."""

    def __init__(self, clock: Callable[[], float] = time.monotonic, wall_ns: Callable[[], int] = time.time_ns) -> None:
        self._clock, self._wall_ns = clock, wall_ns
        self._runs: dict[str, api.Run] = {}
        self._read_at = float("-inf")
        self._stamp: int | None = None  # None: it may change and keep its time
        self._names = frozenset[str]()

    def now(self) -> dict[str, api.Run]:
        stamp = registry.changed_ns()
        is_other = stamp != self._stamp
        if not is_other and self._clock() - self._read_at >= _ANEW_S:
            self._read_at = self._clock()
            is_other = registry.names() != self._names
        if is_other:
            settled = 0 < stamp < self._wall_ns() - _SETTLED_NS
            self._stamp, self._read_at = stamp if settled else None, self._clock()
            self._names = registry.names()  # first: what comes in between makes them differ
            self._runs = {str(one.id): one for one in api.runs()}
        return self._runs
