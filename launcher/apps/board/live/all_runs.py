"""Keep the rows of the table of runs up to date: the disk is read often, and clusters are queried in threads. A run on
a cluster that does not answer is shown with its last known state and the time of that.
"""

import contextlib
import os
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import NamedTuple

import msgspec

from launcher import api
from launcher.apps.board.groups import RunGroup, group_of
from launcher.apps.board.live.logged_errors import logged_errors
from launcher.apps.board.measured.measured_runs import MeasuredRuns
from launcher.apps.board.rows import BoardRow, Figures, board_row, figures_of
from launcher.apps.redacted import known_secrets, redacted_record
from launcher.run import registry
from launcher.run.code.hashes import RACY_NS
from launcher.run.layout import RunDir
from launcher.status.about import About, about
from launcher.status.derive import RunStatus
from launcher.status.series import size

_ANEW_S = 4.0  # its names are looked at all the same: not every file system tells of a change by a folder's time

_ENDED_S = 4.0  # how often those that have ended are looked at: one may be resumed, or given a tag
_SILENT_S = 1.0  # how often those that go on are read of which no record has changed: a process may have died
_GROWN = 1.02  # a small curve is drawn anew once there is so much more of it
_ASKED_AT_ONCE = 8
_NEW_AT_ONCE = 1000  # read for the first time by one look, the newest first: a table of them is soon there


class RowChanges(msgspec.Struct, frozen=True):
    """The rows of the table that are new or have changed, and the ids of runs that were deleted."""

    runs: list[BoardRow]
    gone: list[str]  # ids of runs that were deleted


@dataclass(slots=True)
class SeenRun:
    """A run as it was last read, from which its row of the table is made. `files` are the records whose change means
    that the row may change: `seen` are their modification times when they were read, and `changed` those found when
    they were last checked. `figures` is a summary of the run's metrics, made when they had `drawn` bytes.
    """

    run: api.Run
    status: RunStatus
    files: tuple[str, ...]  # the records that are watched for changes: its state and its labels
    seen: tuple[int, ...]  # the modification times of `files`, taken before these were read
    about: About  # without secrets
    secrets: tuple[str, ...]  # that must be removed from everything that is shown of it
    group: RunGroup | None  # None: it belongs to none
    figures: Figures = field(default_factory=Figures)  # the metrics' best values, and the points of a small curve
    drawn: int = -1  # how many bytes of metrics `figures` were made from
    changed: tuple[int, ...] = ()  # the modification times of `files` when these were last checked
    read_at: float = float("-inf")  # by the clock of AllRuns

    @classmethod
    def of(cls, one: api.Run, status: RunStatus, seen: tuple[int, ...]) -> "SeenRun":
        """Read the run's labels and return it with this status; `seen` are the modification times of its records."""
        about, secrets = _about(one, status)
        return cls(
            one, status, _files_of(one), seen, about, secrets, group_of(one.id, one.path, about.tags), changed=seen
        )

    def has_changed(self) -> bool:
        """Return whether a record of the run has changed since the run was read."""
        self.changed = _changed(self.files)
        return self.changed != self.seen

    def row(self) -> BoardRow:
        """Return the run's row for the table, without secrets."""
        return redacted_record(board_row(self.status, self.about, self.figures, self.group), self.secrets)


class _Looked(NamedTuple):
    """The status of a run that was read just now, and when the files with its state and its labels had last changed,
    looked up before the status was read.
    """

    run: api.Run
    status: RunStatus
    changed: tuple[int, ...]  # its state and its labels, in ns since the epoch; 0: no such file


class AllRuns:
    """The present state of all runs. One thread calls `look`, which reads their states, and `draw`, which reads metrics
    for their curves; other threads read `rows`, the rows by run id, a dict that is never changed, only replaced.
    """

    def __init__(self, measured: MeasuredRuns, clock: Callable[[], float] = time.monotonic) -> None:
        self.rows: dict[str, BoardRow] = {}
        self.complete = False  # all were seen once
        self._measured, self._clock = measured, clock
        self._listed = ListedRuns(clock)
        self._known: dict[str, SeenRun] = {}
        self._met: set[str] = set()  # looked at once, whether they could be read or not
        self._going: set[str] = set()  # of these: that have not ended
        self._outdated: set[str] = set()  # that were seen since their figures were made
        self._elsewhere: dict[str, tuple[str, api.Run]] = {}  # that a cluster knows more of: its kind
        self._asked: dict[str, Future[list[RunStatus]]] = {}
        self._asked_at: dict[str, float] = {}
        self._touched: set[str] = set()
        self._waiting: dict[str, list[api.Run]] = {}
        self._looked_at_ended = float("-inf")
        self._threads = ThreadPoolExecutor(_ASKED_AT_ONCE, thread_name_prefix="clusters")

    def close(self) -> None:
        """Stop the threads that query clusters: cancel queries that wait, and do not wait for those that run."""
        self._threads.shutdown(wait=False, cancel_futures=True)

    def status(self, run_id: str) -> RunStatus | None:
        """Return the run's status as it was last read, or None for an unknown run."""
        known = self._known.get(run_id)
        return known.status if known is not None else None

    def secrets(self, run_id: str) -> tuple[str, ...]:
        """Return the secrets that must be removed from everything that is shown of the run; an empty tuple for an
        unknown run.
        """
        known = self._known.get(run_id)
        return known.secrets if known is not None else ()

    def statuses(self) -> list[RunStatus]:
        """Return the status of every run as it was last read."""
        return [known.status for known in list(self._known.values())]

    def known(self, one: api.Run) -> SeenRun:
        """Return the run as it was last read, or read it now if it has not been."""
        known = self._known.get(one.id)
        if known is not None:
            return known
        seen = _changed(_files_of(one))
        status, kind = api.status_so_far(one)
        return SeenRun.of(one, _being_queried(status) if kind else status, seen)

    def fetch_files(self, run_id: str) -> None:
        """Start to fetch, in a thread, the files that the run's ranks wrote on other machines, for a page that shows
        the run; do nothing if that began less than `WATCH_S` seconds ago, or all files are here.
        """
        known = self._known.get(run_id)
        key = f"files of {run_id}"
        is_late = self._clock() - self._asked_at.get(key, float("-inf")) >= api.WATCH_S
        if known is not None and run_id in self._elsewhere and is_late:
            self._asked_at[key] = self._clock()
            self._ask_for_files(key, known.run)

    def _ask_for_files(self, key: str, one: api.Run) -> None:
        """Start to fetch a run's records from the machine that has them, with its status, in a thread. Do nothing if a
        fetch with this `key` is under way; each fetch of one run has the same key.
        """

        def renewed() -> list[RunStatus]:
            """Fetch the run's files and return its status."""
            return [one.renew()]

        if key not in self._asked:
            self._waiting[key] = [one]
            self._asked[key] = self._threads.submit(renewed)

    def look(self) -> RowChanges:
        """Read the runs that may have changed, and return the rows that have changed since the last call.

        At most a thousand runs are read for the first time by one call; the attribute `complete` is True once all were.
        """
        runs = self._listed.now()
        gone = [run_id for run_id in self._known if run_id not in runs]
        for run_id in gone:
            self._known.pop(run_id, None)
            self._elsewhere.pop(run_id, None)
            self._measured.forget(run_id)
        self._going -= {*gone}
        self._outdated -= {*gone}
        self._met &= runs.keys()
        new = [run_id for run_id in runs if run_id not in self._met]
        self._met |= {*new[:_NEW_AT_ONCE]}
        self._store([*self._answered(), *self._read_due(self._due(runs))])
        self.complete = self.complete or len(new) <= _NEW_AT_ONCE
        return self._changes(gone)

    def draw(self, until: float) -> RowChanges:
        """Read metrics for the small curves of runs whose files have changed, active runs first, until the monotonic
        time `until`; the next call continues with the rest. Return the changed rows.
        """
        outdated = [self._known[run_id] for run_id in self._outdated]
        for known in sorted(outdated, key=lambda one: (one.status.state.ended, -one.status.submitted_at)):
            if self._clock() >= until:
                break
            self._outdated.discard(known.run.id)
            with logged_errors(known.run.id), contextlib.suppress(OSError):
                self._draw(known)
        return self._changes([])

    def _due(self, runs: Mapping[str, api.Run]) -> list[api.Run]:
        """Return the runs to be read now: new ones, those whose records have changed, and active ones that were not
        read for `_SILENT_S` seconds; `runs` are all runs by id.

        The records of runs that have ended are checked for changes only every `_ENDED_S` seconds.
        """
        now = self._clock()
        known = [self._known[run_id] for run_id in self._going]
        due = [one for one in known if one.has_changed() or now - one.read_at >= _SILENT_S]
        if now - self._looked_at_ended >= _ENDED_S:
            self._looked_at_ended = now
            ended = (one for run_id, one in self._known.items() if run_id not in self._going)
            due += [one for one in ended if one.has_changed()]
        for one in due:
            one.read_at = now
        new = (one for run_id, one in runs.items() if run_id in self._met and run_id not in self._known)
        return [*(one.run for one in due), *new]

    def _read_due(self, due: Sequence[api.Run]) -> list[_Looked]:
        """Read the status of each run in `due` from this disk, and return it with the run; start to query the cluster
        of each run whose state only its cluster can tell.

        Such a run is returned, with the state on this disk, only if it has no row yet; else its row stays as it is
        until its cluster has answered.
        """
        found = list[_Looked]()
        for one in due:
            with logged_errors(one.id):
                known = self._known.get(one.id)
                # Before it is read: what is written meanwhile is seen by the next look.
                changed = known.changed if known is not None else _changed(_files_of(one))
                status, kind = api.status_so_far(one)
                if kind:
                    self._elsewhere[one.id] = kind, one
                else:
                    self._elsewhere.pop(one.id, None)
                if not kind or known is None:
                    found.append(_Looked(one, _being_queried(status) if kind else status, changed))
        asked = dict[str, list[api.Run]]()
        for kind, one in self._elsewhere.values():
            asked.setdefault(kind, []).append(one)
        for kind, runs in asked.items():
            self._ask(kind, runs)
        return found

    def _ask(self, kind: str, runs: list[api.Run]) -> None:
        """Start to query the clusters of the kind `kind`, such as slurm, about the runs, in a thread; the method
        `_answered` returns what they answer.

        Do nothing if a query of this kind is under way, or began less than `WATCH_S` seconds ago.
        """
        is_late = self._clock() - self._asked_at.get(kind, float("-inf")) >= api.WATCH_S
        if kind not in self._asked and is_late:
            self._asked_at[kind] = self._clock()
            self._waiting[kind] = runs
            self._asked[kind] = self._threads.submit(api.statuses, runs, api.WATCH_S)

    def _answered(self) -> list[_Looked]:
        """Return the runs of each kind of cluster whose query has ended since the last call, with the state that it
        brought; if it failed, with the last known state and the error as its message.
        """
        found: list[tuple[api.Run, RunStatus]] = []
        for kind in [kind for kind, asked in self._asked.items() if asked.done()]:
            asked, runs = self._asked.pop(kind), self._waiting.pop(kind)
            error = asked.exception()
            if error is not None:
                found += [
                    (one, _with_message(self._known[one.id].status, str(error)))
                    for one in runs
                    if one.id in self._known
                ]
            else:
                found += zip(runs, asked.result(), strict=True)
        return [_Looked(one, status, self._known[one.id].changed) for one, status in found if one.id in self._known]

    def _store(self, found: Sequence[_Looked]) -> None:
        """Store the states of runs that were read; an error with one is logged, and does not affect others. Nothing is
        stored about a run whose folder is gone.
        """
        for looked in found:
            one, status, _ = looked
            if status.submitted_at <= 0 and status.state == "unknown" and not one.path.exists():
                continue  # its folder was taken away behind our back
            with logged_errors(one.id):
                self._store_one(*looked)

    def _store_one(self, one: api.Run, status: RunStatus, changed: tuple[int, ...]) -> None:
        """Store the `status` that was read of a run, and have its row drawn anew.

        `changed` are the times of change of the run's state and of its labels, taken before the status was read. Labels
        are read again only if their time differs from the last or there is a new attempt.
        """
        known = self._known.get(one.id)
        if known is None:
            self._known[one.id] = known = SeenRun.of(one, status, changed)
            known.read_at = self._clock()
        else:
            if changed[1:] != known.seen[1:] or status.attempt != known.status.attempt:
                known.about, known.secrets = _about(one, status)
                known.group = group_of(one.id, one.path, known.about.tags)
            known.status, known.seen = status, changed
        if status.state.ended:
            self._going.discard(one.id)
            self._elsewhere.pop(one.id, None)
        else:
            self._going.add(one.id)
        self._touched.add(one.id)
        self._outdated.add(one.id)

    def _draw(self, known: SeenRun) -> None:
        """Read the run's metrics for the small curve in its row if their files have grown by more than 2 % or shrunk
        or, in a run that has ended, changed at all.

        The metrics of an ended run are not read if they have more than `ReadingLimits.row_bytes`: its curve stays as it
        is, or is missing.
        """
        ended = known.status.state.ended
        bytes_now = size(RunDir(known.run.path))
        grown = bytes_now > _GROWN * known.drawn or bytes_now < known.drawn or (ended and bytes_now != known.drawn)
        if not grown or (ended and bytes_now > self._measured.limits.row_bytes):
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
        """Return the rows that have changed since the last call, and put them into `rows`; remove those of the runs
        with the ids `gone`. An error with one row is logged, and does not affect others.
        """
        touched, self._touched = self._touched, set()
        other = dict[str, BoardRow]()
        for one in touched:
            with logged_errors(one):
                row = self._known[one].row()
                if self.rows.get(one) != row:
                    other[one] = row
        if other or gone:
            rows = self.rows | other
            for one in gone:
                rows.pop(one, None)
            self.rows = rows
        return RowChanges([*other.values()], gone)


def _files_of(one: api.Run) -> tuple[str, ...]:
    """Return the paths of the files of a run whose change means that its row may change: its state and its labels."""
    return os.path.join(one.path, RunDir.state.name), os.path.join(one.path, RunDir.labels.name)


def _about(one: api.Run, status: RunStatus) -> tuple[About, tuple[str, ...]]:
    """Return (the labels and description of the run without secrets, the secrets that were removed)."""
    run = RunDir(one.path)
    secrets = known_secrets(run, status.attempt)
    return redacted_record(about(run, status.attempt), secrets), secrets


def _changed(files: Sequence[str]) -> tuple[int, ...]:
    """Return when each file was last changed, in ns since the epoch, or 0 for one that does not exist."""
    found = []
    for path in files:
        try:
            found.append(os.stat(path).st_mtime_ns)
        except OSError:
            found.append(0)
    return tuple(found)


def _being_queried(status: RunStatus) -> RunStatus:
    """Return the status with a message that its cluster is being queried."""
    return _with_message(status, f"{status.cluster} is being asked")


def _with_message(status: RunStatus, why: str) -> RunStatus:
    """Return the status with the message `why`."""
    return msgspec.structs.replace(status, message=why)


class ListedRuns:
    """The runs in this user's list; `now` returns them by id. It returns the same dict object as before if the list is
    known to be unchanged since then.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic, wall_ns: Callable[[], int] = time.time_ns) -> None:
        self._clock, self._wall_ns = clock, wall_ns
        self._runs: dict[str, api.Run] = {}
        self._read_at = float("-inf")
        self._stamp: int | None = None  # None: it may change and keep its time
        self._names = frozenset[str]()

    def now(self) -> dict[str, api.Run]:
        """Return {run id: run} for all runs in the user's list now."""
        stamp = registry.changed_ns()
        is_other = stamp != self._stamp
        if not is_other and self._clock() - self._read_at >= _ANEW_S:
            self._read_at = self._clock()
            is_other = registry.names() != self._names
        if is_other:
            settled = 0 < stamp < self._wall_ns() - RACY_NS
            self._stamp, self._read_at = stamp if settled else None, self._clock()
            self._names = registry.names()  # first: what comes in between makes them differ
            self._runs = {str(one.id): one for one in api.runs()}
        return self._runs
