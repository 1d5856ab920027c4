"""The metrics of those runs that are looked at or go on: kept in memory so that only what is new is read."""

import threading
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from launcher import api
from launcher.board.measured.reading import MeasuredRun
from launcher.rundir.layout import RunDir

_MOST_NUMBERS = 12_000_000  # of eight bytes; one run may have more


@dataclass(slots=True)
class _Kept:
    run: MeasuredRun
    lock: threading.Lock = field(default_factory=threading.Lock)  # a page asks while the feed reads on


class MeasuredRuns:
    """What was longest not asked for goes first where there is too much of it."""

    def __init__(self) -> None:
        self._kept: OrderedDict[str, _Kept] = OrderedDict()
        self._lock = threading.Lock()

    @contextmanager
    def renewed(self, one: api.Run) -> Iterator[MeasuredRun]:
        """As it is now; nobody else reads on until it is given back."""
        with self._lock:
            kept = self._kept.setdefault(one.id, _Kept(MeasuredRun(RunDir(one.path))))
            self._kept.move_to_end(one.id)
        with kept.lock:
            kept.run.renew()
            yield kept.run
        self._make_room()

    def forget(self, run_id: str) -> None:
        with self._lock:
            self._kept.pop(run_id, None)

    def _make_room(self) -> None:
        with self._lock:
            numbers = sum(kept.run.numbers for kept in self._kept.values())
            while numbers > _MOST_NUMBERS and len(self._kept) > 1:
                numbers -= self._kept.popitem(last=False)[1].run.numbers
