"""Keep the metrics of runs that are shown or active in memory, so that only new lines are read."""

import threading
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial

from launcher import api
from launcher.apps.board.measured.reading import GrowingLines, MeasuredRun, ReadingLimits, glimpse
from launcher.run.layout import RunDir
from launcher.status.series import size

_MOST_NUMBERS = 12_000_000  # of eight bytes; one run may have more
_SYSTEM = " system"  # behind the id: no id has a blank


@dataclass(slots=True)
class _Kept:
    """The metrics of one run in memory, and the lock to hold while they are read. `numbers` is the memory they take, as
    last counted.
    """

    run: MeasuredRun
    numbers: int = 0  # how many numbers it has in memory, as last counted
    lock: threading.Lock = field(default_factory=threading.Lock)  # a page may request it while the feed reads it


def _key(one: api.Run) -> str:
    """Return a key that differs for each run, and for each part of a run with a folder of its own, such as another
    role.
    """
    return str(one.id) if one.path.name == one.id else f"{one.id}/{one.path.name}"


class MeasuredRuns:
    """The metrics of several runs in memory. If they are more than `_MOST_NUMBERS` numbers, those of the least recently
    used run are dropped.
    """

    def __init__(self, limits: ReadingLimits | None = None) -> None:
        self.limits = limits or ReadingLimits()
        self._kept: OrderedDict[str, _Kept] = OrderedDict()
        self._numbers = 0  # in memory, of all
        self._lock = threading.Lock()
        self._glimpses = 0  # under way
        self._nobody_glimpses = threading.Event()
        self._nobody_glimpses.set()

    @contextmanager
    def glimpsed(self, one: api.Run) -> Iterator[MeasuredRun | None]:
        """Yield a sample of a run's metrics, to draw before all of a long run's files are read.

        Yield None if all its metrics are in memory, their files are shorter than `limits.long_bytes`, or the sample is
        empty. Threads that read whole runs pause meanwhile, because Python's threads share one interpreter.
        """
        run = RunDir(one.path)
        with self._lock:
            kept = self._kept.get(_key(one))
        if (kept is not None and kept.run.is_read) or size(run) < self.limits.long_bytes:
            yield None
            return
        self._count_glimpses(1)
        try:
            found = glimpse(run, self.limits)
            yield found if found.names else None
        finally:
            self._count_glimpses(-1)

    def read_ahead(self, one: api.Run) -> None:
        """Read a run's metrics before a page requests them, unless their files are longer than `limits.long_bytes`.

        A page first shows a sample of longer ones.
        """
        if size(RunDir(one.path)) < self.limits.long_bytes:
            with self.renewed(one):
                pass

    def _count_glimpses(self, more: int) -> None:
        """Add `more` (1 or -1) to the number of threads that read a sample of a run's metrics, which a page shows
        first; threads that read whole runs pause while it is above 0.
        """
        with self._lock:
            self._glimpses += more
            if self._glimpses:
                self._nobody_glimpses.clear()
            else:
                self._nobody_glimpses.set()

    @contextmanager
    def renewed(self, one: api.Run, *, system: bool = False) -> Iterator[MeasuredRun]:
        """Yield a run's metrics, up to date; other threads wait for them until the body ends.

        With `system`, they are what the run's nodes and ranks used, such as CPU and memory.
        """
        key = f"{_key(one)}{_SYSTEM * system}"
        with self._lock:
            if key not in self._kept:
                reader = partial(GrowingLines, pause=self._nobody_glimpses.wait)
                self._kept[key] = _Kept(MeasuredRun(RunDir(one.path), reader, system=system))
            kept = self._kept[key]
            self._kept.move_to_end(key)
        with kept.lock:
            kept.run.renew()
            yield kept.run
        self._make_room(key, kept)

    def forget(self, run_id: str) -> None:
        """Drop a run's metrics from memory."""
        with self._lock:
            for key in [key for key in self._kept if key == run_id or key.startswith((f"{run_id} ", f"{run_id}/"))]:
                self._numbers -= self._kept.pop(key).numbers

    def _make_room(self, key: str, renewed: _Kept) -> None:
        """Record how many numbers the run that was just read, which has the key `key`, now has in memory; then drop the
        least recently used runs while all together have more than `_MOST_NUMBERS`.
        """
        with self._lock:
            if self._kept.get(key) is renewed:
                self._numbers += (now := renewed.run.numbers) - renewed.numbers
                renewed.numbers = now
            while self._numbers > _MOST_NUMBERS and len(self._kept) > 1:
                self._numbers -= self._kept.popitem(last=False)[1].numbers
