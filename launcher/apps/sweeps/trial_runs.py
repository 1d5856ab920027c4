"""Start, query, resume and cancel the runs of a sweep's trials; a run's id follows from its trial's number. An
override, such as `run.args.lr=0.1`, sets one option of the spec, as `--set` does.
"""

import contextlib
import math
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from launcher import api
from launcher.api import WATCH_S, Run
from launcher.apps.sweeps.decide import TrialRun
from launcher.apps.sweeps.folder import SweepDir, SweepRecord
from launcher.errors import LaunchError
from launcher.ids import RunId, parse_run_id
from launcher.run.attempts import newest
from launcher.run.code.listing import list_frozen
from launcher.run.layout import RunDir
from launcher.run.patience import say
from launcher.states import State
from launcher.status.series import read_rows, size
from launcher.submission.opening import open_named
from launcher.submission.project import ProjectCode
from launcher.submission.requests import Request, check_on_cluster, plan_of, read_request

if TYPE_CHECKING:
    from launcher.places.place import Place

_GLANCE_S, _MANY = 0.02, 20  # at so many files: at more of them more seldom
_ARGUMENTS = "run.args."  # what they change is seen by no import
NO_SWEEP = "sweep=null"  # of a trial: it is one run
Reports = Sequence[tuple[int, float]]  # steps and values


class NotYet(Exception):
    """Raised if a run cannot start yet, because the modules that all runs need are still being imported by the process
    from which their ranks are forked.
    """


class Trials(Protocol):
    """The operations on runs that the process conducting a sweep needs. None of them waits until a run has ended."""

    def start(self, run_id: str, overrides: Sequence[str]) -> None:
        """Start a run with these overrides; do nothing if it was started before.

        Raise NotYet if the modules that all runs need are still being imported, LaunchError if the start failed, and
        BadInput if the run can never be started.
        """

    def expect(self, run_id: str) -> None:
        """Prepare for the run that will be started next, for instance by starting its supervisor in advance, so that it
        starts sooner.
        """

    def look(self, run_ids: Sequence[str]) -> Mapping[str, TrialRun]:
        """Return {run id: its state}; a run that was never started is left out."""

    def rest(self, seconds: float) -> None:
        """Wait for `seconds`, or until a run that was active at the last call of `look` has ended."""

    def reports(self, run_id: str) -> Reports:
        """Return (step, value) for each step at which the run has reported the sweep's metric, by ascending step; empty
        if there is none.
        """

    def cancel(self, run_id: str) -> None:
        """Start to cancel a run. Its newest checkpoint is kept, so that `revive` can resume it."""

    def revive(self, run_id: str, overrides: Sequence[str]) -> None:
        """Resume an ended run from its newest checkpoint, with these overrides; do nothing if there is no such run."""


def run_id_of(sweep: RunId, number: int) -> RunId:
    """Return the run id of trial `number` of the sweep with the id `sweep`, such as `resnet-7k3f-t0007`."""
    return parse_run_id(f"{sweep}-t{number:04d}")


class RunsOfTrials:
    """The operations on real runs, through the Python API, that the process which conducts a sweep needs."""

    def __init__(self, sweep: SweepDir, record: SweepRecord) -> None:
        self._sweep, self._record = sweep, record
        self._root = sweep.runs
        self._code = ProjectCode(list_frozen(sweep.code), record.own_folders, ())
        self._readier: Place | None = None  # the cluster, once imports for the trials have begun on it
        self._ends: Sequence[Path] = ()  # what will be there once they have ended
        self._cancels: dict[str, subprocess.Popen[bytes]] = {}
        self._revivals = Counter[str]()
        self._read: dict[str, tuple[int, Reports]] = {}

    def warm_up(self) -> None:
        """Start to import the modules that trials need, before the first trial is started. Do nothing if trials differ
        in other options than `run.args`, as imports may depend on those.

        An error is ignored here, because the first trial will report it.
        """
        changed = {*self._record.options.space, *(name for point in self._record.points or () for name in point)}
        if not all(name.startswith(_ARGUMENTS) for name in changed):
            return
        with contextlib.suppress(LaunchError, OSError):
            self._import_early(self._request(()), run_id_of(parse_run_id(self._record.id), 0))

    def start(self, run_id: str, overrides: Sequence[str]) -> None:
        """Start a run with these overrides; do nothing if it was started before.

        Raise NotYet while a process still imports, in advance, the modules that the ranks of all trials need, and
        LaunchError if no run could be created.
        """
        if self._run(run_id) is not None:
            return  # by a conductor that was killed before it could see it
        named, wish = parse_run_id(run_id), self._request(overrides)
        if not self._import_early(wish, named):
            raise NotYet
        try:
            open_named(named, wish)
        except LaunchError as error:
            if not error.runs:
                raise
            say(str(error))  # the run is there: whoever looks at it hands it over

    def expect(self, run_id: str) -> None:
        """Have the cluster start processes in advance for the run `run_id`, which will be started next; do nothing
        until `warm_up` has had that cluster begin the imports for the trials.
        """
        if self._readier is not None:
            self._readier.expect(self._root / run_id)

    def look(self, run_ids: Sequence[str]) -> dict[str, TrialRun]:
        """Return {run id: its state}, leaving out runs that were never started. The next calls of `rest` return early
        once one of these runs ends that is active now.
        """
        there = [run for run in map(self._run, run_ids) if run is not None]
        attempts = (newest(RunDir(run.path)) for run in there)
        self._ends = [one.end for one in attempts if one is not None and not one.end.exists()]
        found = api.statuses(there, WATCH_S)
        views: dict[str, TrialRun] = {}
        for run, one in zip(there, found, strict=True):
            value = self._value(run) if one.state.ended else None
            names = tuple(sorted({*one.metrics, *one.not_finite}))
            views[run.id] = TrialRun(one.state, value, one.last_word, names, self._revivals[run.id], one.attempt)
        return views

    def rest(self, seconds: float) -> None:
        """Wait for `seconds`, or until a run that was active at the last call of `look` has ended."""
        until = time.monotonic() + seconds
        pause = _GLANCE_S * (1 + len(self._ends) / _MANY)
        while (left := until - time.monotonic()) > 0 and not any(end.exists() for end in self._ends):
            time.sleep(min(left, pause))

    def reports(self, run_id: str) -> Reports:
        """Return (step, value) for each step at which the run has reported the sweep's metric; empty if there is none,
        or no such run.
        """
        run = self._run(run_id)
        if run is None:
            return ()
        run.renew()  # of what is on other machines
        folder = RunDir(run.path)
        read, found = self._read.get(run_id, (-1, ()))
        if (now := size(folder)) != read:
            metric = self._record.options.metric
            found = [(step, row[metric]) for step, row in read_rows(folder).items() if metric in row]
            self._read[run_id] = now, found
        return found

    def cancel(self, run_id: str) -> None:
        """Cancel a run in a new process, without waiting for it."""
        before = self._cancels.get(run_id)
        if before is None or before.poll() is not None:
            words = [sys.executable, "-P", "-m", "launcher.cli.main", "cancel", run_id]
            self._cancels[run_id] = subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)

    def revive(self, run_id: str, overrides: Sequence[str]) -> None:
        """Resume the trial's run with this id, which has ended, from its newest checkpoint with these overrides. Do
        nothing if there is no such run.
        """
        run = self._run(run_id)
        if run is not None:
            self._revivals[run_id] += run.status().state is State.LOST
            run.resume(overrides=overrides)

    def _request(self, overrides: Sequence[str]) -> Request:
        """Return the checked request for a trial's run with these overrides."""
        record = self._record
        words = (*record.overrides, NO_SWEEP, *overrides)
        root = Path(record.project)
        return check_on_cluster(
            read_request(self._sweep.spec, on=record.on, overrides=words, root=root, frozen=self._code)
        )

    def _import_early(self, wish: Request, named: RunId) -> bool:
        """Have a process import in advance what a trial's run needs: the run with id `named`, by the request `wish`.
        The process then forks the ranks of this and later trials.

        Return False while the imports are under way, else True: they are done, or the cluster is one on which nothing
        is imported in advance.
        """
        self._readier = wish.cluster
        return self._readier.warm_up(plan_of(wish, named, self._root / named, 0.0), self._sweep.path)

    def _run(self, run_id: str) -> Run | None:
        """Return the run with this id, or None if it was not started."""
        path = self._root / run_id
        return Run(parse_run_id(run_id), path) if path.is_dir() else None

    def _value(self, run: Run) -> float | None:
        """Return the last value of the sweep's metric, or None if the run has reported none."""
        return last_value(self.reports(run.id))


def last_value(reports: Iterable[tuple[int, float]]) -> float | None:
    """Return the last finite value in the reports, pairs (step, value), oldest first. If none is finite return the last
    value, NaN or infinite; if there are none, None.
    """
    values = [value for _, value in reports]
    finite = [value for value in values if math.isfinite(value)]
    return finite[-1] if finite else (values[-1] if values else None)
