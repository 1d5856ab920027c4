"""All runs as lines of a table, kept current: looked at on disk often, and clusters asked in threads of their own.

A cluster that is silent holds up nobody: its runs show what was last known of them, and since when.
"""

import contextlib
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field

import msgspec

from launcher import api
from launcher.board.blotted import blotted_record, known_secrets
from launcher.board.live.apart import apart
from launcher.board.measured.shelf import MeasuredRuns
from launcher.board.rows import BoardRow, Figures, board_row, figures_of
from launcher.rundir.layout import RunDir
from launcher.status.about import About
from launcher.status.derive import RunStatus
from launcher.status.series import size

_ENDED_S = 4.0  # how often those that have ended are looked at: one may be resumed, or given a tag
_MOST_BYTES = 4 << 20  # of metrics are read for a line of the table; more only where the run goes on or is looked at
_GROWN = 1.02  # a small curve is drawn anew once there is so much more of it
_ASKED_AT_ONCE = 8


class RowChanges(msgspec.Struct, frozen=True):
    """Lines that are new or other, and the runs that are gone."""

    runs: list[BoardRow]
    gone: list[str]


@dataclass(slots=True)
class SeenRun:
    """What was last seen of a run."""

    run: api.Run
    status: RunStatus
    seen: tuple[int, ...]  # when its records were changed
    about: About  # without the secrets
    secrets: tuple[str, ...]
    figures: Figures = field(default_factory=Figures)
    drawn: int = -1  # bytes of metrics that the figures are of
    drawn_last: tuple[int, ...] | None = None  # how its records were when it had ended and was drawn: nothing follows

    @classmethod
    def of(cls, one: api.Run, status: RunStatus, seen: tuple[int, ...]) -> "SeenRun":
        secrets = known_secrets(RunDir(one.path), status.attempt)
        return cls(one, status, seen, blotted_record(one.about(), secrets), secrets)

    def row(self) -> BoardRow:
        return blotted_record(board_row(self.status, self.about, self.figures), self.secrets)


class AllRuns:
    """`look` is called by one thread; others read `rows`, which is replaced as a whole."""

    def __init__(self, measured: MeasuredRuns, clock: Callable[[], float] = time.monotonic) -> None:
        self.rows: dict[str, BoardRow] = {}
        self.complete = False  # all were seen once
        self._measured, self._clock = measured, clock
        self._known: dict[str, SeenRun] = {}
        self._asked: dict[str, Future[list[RunStatus]]] = {}
        self._asked_at: dict[str, float] = {}
        self._touched: set[str] = set()
        self._waiting: dict[str, list[api.Run]] = {}
        self._looked_at_ended = float("-inf")
        self._threads = ThreadPoolExecutor(_ASKED_AT_ONCE, thread_name_prefix="clusters")

    def close(self) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)

    def status(self, run_id: str) -> RunStatus | None:
        known = self._known.get(run_id)
        return known.status if known is not None else None

    def secrets(self, run_id: str) -> tuple[str, ...]:
        known = self._known.get(run_id)
        return known.secrets if known is not None else ()

    def statuses(self) -> list[RunStatus]:
        return [known.status for known in list(self._known.values())]

    def known(self, one: api.Run) -> SeenRun:
        """That of which nobody has heard yet is looked at now."""
        known = self._known.get(one.id)
        if known is not None:
            return known
        status = _not_asked_yet(one) if api.asked_of(one) else one.status()
        return SeenRun.of(one, status, ())

    def bring(self, run_id: str) -> None:
        """Have what its ranks wrote on other machines come home, in a thread: somebody looks at it."""
        known = self._known.get(run_id)
        key = f"files of {run_id}"
        is_late = self._clock() - self._asked_at.get(key, float("-inf")) >= api.WATCH_S
        if known is not None and not known.status.state.ended and is_late and api.asked_of(known.run):
            self._asked_at[key] = self._clock()
            self._ask_for_files(key, known.run)

    def _ask_for_files(self, key: str, one: api.Run) -> None:
        def renewed() -> list[RunStatus]:
            return [one.renew()]

        if key not in self._asked:
            self._waiting[key] = [one]
            self._asked[key] = self._threads.submit(renewed)

    def look(self) -> RowChanges:
        """What is other since the last look."""
        runs = {str(one.id): one for one in api.runs()}
        gone = [run_id for run_id in self._known if run_id not in runs]
        for run_id in gone:
            self._known.pop(run_id, None)
            self._measured.forget(run_id)
        self._take([*self._heard(), *self._seen(self._due(runs.values()))])
        self.complete = True
        return self._changes(gone)

    def draw(self, until: float) -> RowChanges:
        """Read on in the metrics, of those that go on first, until it is that late."""
        for known in sorted(self._known.values(), key=lambda one: (one.status.state.ended, -one.status.submitted_at)):
            if self._clock() >= until:
                break
            with apart(known.run.id), contextlib.suppress(OSError):
                self._draw(known)
        return self._changes([])

    def _due(self, runs: Iterable[api.Run]) -> list[api.Run]:
        """Those that may have changed."""
        at_all = self._clock() - self._looked_at_ended >= _ENDED_S
        if at_all:
            self._looked_at_ended = self._clock()
        due = []
        for one in runs:
            known = self._known.get(one.id)
            if known is None or not known.status.state.ended or (at_all and _records(one) != known.seen):
                due.append(one)
        return due

    def _seen(self, due: Sequence[api.Run]) -> list[tuple[api.Run, RunStatus]]:
        """Of those that are here, and of others what lies here until their cluster has answered."""
        here, asked = list[api.Run](), dict[str, list[api.Run]]()
        for one in due:
            kind = api.asked_of(one)
            (asked.setdefault(kind, []) if kind else here).append(one)
        for kind, runs in asked.items():
            self._ask(kind, runs)
        strangers = [one for runs in asked.values() for one in runs if one.id not in self._known]
        return [
            *zip(here, api.statuses(here), strict=True),
            *((one, _not_asked_yet(one)) for one in strangers),
        ]

    def _ask(self, kind: str, runs: list[api.Run]) -> None:
        is_late = self._clock() - self._asked_at.get(kind, float("-inf")) >= api.WATCH_S
        if kind not in self._asked and is_late:
            self._asked_at[kind] = self._clock()
            self._waiting[kind] = runs
            self._asked[kind] = self._threads.submit(api.statuses, runs, api.WATCH_S)

    def _heard(self) -> list[tuple[api.Run, RunStatus]]:
        """What clusters have answered by now."""
        found: list[tuple[api.Run, RunStatus]] = []
        for kind in [kind for kind, asked in self._asked.items() if asked.done()]:
            asked, runs = self._asked.pop(kind), self._waiting.pop(kind)
            error = asked.exception()
            if error is not None:
                found += [
                    (one, _silent(self._known[one.id].status, str(error))) for one in runs if one.id in self._known
                ]
            else:
                found += zip(runs, asked.result(), strict=True)
        return found

    def _take(self, seen: Sequence[tuple[api.Run, RunStatus]]) -> None:
        for one, status in seen:
            if status.submitted_at <= 0 and status.state == "unknown" and not one.path.exists():
                continue  # its folder was taken away behind our back
            with apart(one.id):
                self._take_one(one, status)

    def _take_one(self, one: api.Run, status: RunStatus) -> None:
        known, records = self._known.get(one.id), _records(one)
        if known is None:
            self._known[one.id] = SeenRun.of(one, status, records)
        else:
            if records[1:] != known.seen[1:] or status.attempt != known.status.attempt:
                fresh = SeenRun.of(one, status, records)
                known.about, known.secrets = fresh.about, fresh.secrets
            known.status, known.seen = status, records
        self._touched.add(one.id)

    def _draw(self, known: SeenRun) -> None:
        ended = known.status.state.ended
        if ended and known.drawn_last == known.seen:
            return
        bytes_now = size(RunDir(known.run.path))
        known.drawn_last = known.seen if ended else None
        grown = bytes_now > _GROWN * known.drawn or bytes_now < known.drawn or (ended and bytes_now != known.drawn)
        if not grown or (ended and bytes_now > _MOST_BYTES):
            return
        known.drawn = bytes_now
        if bytes_now == 0:
            return
        with self._measured.renewed(known.run) as measured:
            known.figures = figures_of(measured)
        self._touched.add(known.run.id)
        if ended:
            self._measured.forget(known.run.id)

    def _changes(self, gone: list[str]) -> RowChanges:
        """Lines are made anew for those alone of which something was seen."""
        touched, self._touched = self._touched, set()
        made = {one: self._known[one].row() for one in touched}
        other = {one: row for one, row in made.items() if self.rows.get(one) != row}
        if other or gone:
            self.rows = {one: row for one, row in (self.rows | other).items() if one not in gone}
        return RowChanges([*other.values()], gone)


def _records(one: api.Run) -> tuple[int, ...]:
    """When its last word, and what people say of it, were written."""
    run = RunDir(one.path)
    found = []
    for path in (run.state, run.labels):
        try:
            found.append(path.stat().st_mtime_ns)
        except OSError:
            found.append(0)
    return tuple(found)


def _not_asked_yet(one: api.Run) -> RunStatus:
    status = api.as_it_lies(one)
    return _silent(status, f"{status.cluster} is being asked")


def _silent(status: RunStatus, why: str) -> RunStatus:
    return msgspec.structs.replace(status, message=why)
