"""The trials of a sweep in Optuna's journal: their options, reported values, and how each ended. A trial is known by
its `number`. In successive halving, trials are compared at certain steps, called rungs. A kill at any moment loses
nothing: a trial is created, then its values are chosen, then its run's id is written, and only then is the run started.
A point has a value for each option that a trial sets.
"""

import contextlib
import os
import time
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from msgspec.structs import replace
from optuna import create_study, load_study, logging, pruners, samplers
from optuna.exceptions import ExperimentalWarning
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend, JournalFileSymlinkLock
from optuna.trial import FrozenTrial, Trial, TrialState

from launcher.apps.sweeps.decide import Rung
from launcher.apps.sweeps.folder import Point, SweepDir, SweepRecord, TrialNote
from launcher.apps.sweeps.points import applies, override_of
from launcher.run.durable import read_bytes
from launcher.spec.model import Dimension, EarlyStop, SweepOptions

_STALE_S = 3  # a lock that stands so long is that of a process that was killed: a write takes a thousandth of it
OPEN, FAILED = "running", "failed"
_STATES = {
    TrialState.RUNNING: OPEN,
    TrialState.FAIL: FAILED,
    TrialState.COMPLETE: "complete",
    TrialState.PRUNED: "pruned",
}
_RUN, _PRUNED_AT, _WHY, _POINT = "run", "pruned_at", "why", "point"
_GOES_ON, _EXTENDS = "goes_on", "extends"
_RUNG = "completed_rung_"  # what Optuna's successive halving notes of a trial, with the number of the rung
FORESEEN = ("random", "qmc")  # their points are the same whatever comes of them
_STARTUP = 10


def sampler_of(options: SweepOptions, seed: int) -> samplers.BaseSampler:
    """Return the Optuna sampler that chooses points in the way that `options.search` names, at random if it is none of
    Optuna's other ways; `seed` is that of its random numbers.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ExperimentalWarning)
        match options.search:
            case "tpe":
                waits = (
                    options.parallel > 1 or options.stop.early == "asha"
                )  # those that are open are not the best ones
                return samplers.TPESampler(seed=seed, n_startup_trials=_STARTUP, constant_liar=waits)
            case "gp":
                return samplers.GPSampler(seed=seed, n_startup_trials=_STARTUP)
            case "cmaes":
                return samplers.CmaEsSampler(seed=seed, warn_independent_sampling=False)
            case "qmc":
                return samplers.QMCSampler(
                    seed=seed, scramble=True, warn_independent_sampling=False, warn_asynchronous_seeding=False
                )
            case _:
                return samplers.RandomSampler(seed=seed)


def pruner_of(stop: EarlyStop) -> pruners.BasePruner:
    """Return the Optuna pruner for `stop.early`, the rule by which trials are stopped early: asha, hyperband or median.
    Without a rule it is a NopPruner, which stops none.
    """
    match stop.early:
        case "asha":
            return pruners.SuccessiveHalvingPruner(min_resource=stop.min_steps, reduction_factor=stop.factor)
        case "hyperband":
            return pruners.HyperbandPruner(min_resource=stop.min_steps, reduction_factor=stop.factor)
        case "median":
            return pruners.MedianPruner(n_warmup_steps=stop.min_steps)
        case _:
            return pruners.NopPruner()


def suggested(trial: Trial, space: Mapping[str, Dimension]) -> Point:
    """Return the point of a trial: a value for each option of `space`, in order, that applies with the values before
    it. A value that the trial has already is kept; Optuna chooses the others.
    """
    point: dict[str, Any] = {}  # what is suggested of values is one of them
    for key, one in space.items():
        if not applies(one, point):
            continue
        if one.values:
            point[key] = trial.suggest_categorical(key, one.values)
        elif one.whole:
            point[key] = trial.suggest_int(key, int(one.low), int(one.high), step=int(one.step or 1), log=one.log)
        else:
            point[key] = trial.suggest_float(key, one.low, one.high, step=one.step, log=one.log)
    return point


def foreseen(options: SweepOptions, seed: int, count: int) -> list[Point]:
    """Return the first `count` points of the search in `options`, which must be one that ignores results, with the
    random seed `seed`.

    A larger count begins with the same points.
    """
    level = logging.get_verbosity()
    logging.set_verbosity(logging.WARNING)
    try:
        study = create_study(sampler=sampler_of(options, seed))
        found = []
        for _ in range(count):
            trial = study.ask()
            found.append(suggested(trial, options.space))
            study.tell(trial, 0.0)
        return found
    finally:
        logging.set_verbosity(level)


@dataclass(frozen=True, slots=True)
class BookedTrial:
    """A trial as the journal has it. `run` is "" until its values are chosen, and `pruned_at` the step at which it is
    to stop early (None: it is not). `goes_on_after` is the attempt at whose end its run was paused and is to be resumed
    (0: none). `extension` has the overrides with which it trains another trial's finished run further, if it does that.
    """

    number: int
    state: str  # running, complete, pruned, failed
    params: Point
    run: str  # the id of its run; "": its values are not chosen yet
    pruned_at: int | None  # the step at which it is to stop early, unless it was told to continue
    value: float | None  # its result, if it is complete
    last_step: int | None  # the newest step with a reported value
    why: str  # the reason why it failed, or ""
    rung: Rung | None = None  # the last one that it has reached
    goes_on_after: int = 0  # the attempt of its run after which the run is to be resumed; 0: none
    extension: tuple[str, ...] = ()  # the changes with which it trains the run of another trial further

    @property
    def overrides(self) -> tuple[str, ...]:
        """The overrides that give a run the trial's values, such as `run.args.lr=0.1`; none if none are chosen yet."""
        return tuple(override_of(key, value) for key, value in self.params.items())


class TrialBook:
    """The trials in Optuna's journal. Only the conductor, the process that conducts the sweep, writes through it, and
    only one at a time; other processes may read, or queue trials through Optuna.
    """

    def __init__(self, sweep: SweepDir, record: SweepRecord) -> None:
        logging.set_verbosity(logging.WARNING)
        self._record, self._options = record, record.options
        mend(sweep.journal)
        forget_dead_lock(sweep.journal)
        self._storage = _storage(sweep)
        self._study = create_study(
            storage=self._storage,
            study_name=record.id,
            direction="maximize" if self._options.mode == "max" else "minimize",
            pruner=pruner_of(self._options.stop),
            load_if_exists=True,
        )
        self._foreseen: list[Point] = [*(record.points or ())]

    def entries(self) -> list[BookedTrial]:
        """Return all trials, without those that are only queued."""
        trials = self._study.get_trials(deepcopy=False)
        sign = 1 if self._options.mode == "max" else -1
        return [_entry(one, _rung(one, trials, sign)) for one in trials if one.state in _STATES]

    def ask(self) -> int:
        """Create one more trial, or take the first one that is queued, and return its number; its values have yet to be
        chosen.
        """
        trials = self._study.get_trials(deepcopy=False)
        if not any(one.state is TrialState.WAITING for one in trials):
            index = 1 + max((one.user_attrs.get(_POINT, -1) for one in trials), default=-1)
            point = self._point(index)
            if point is not None:
                self._study.enqueue_trial(point, user_attrs={_POINT: index})
        return self._study.ask().number

    def choose(self, number: int, run_id: str) -> None:
        """Have Optuna's sampler choose the values of trial `number`, and record `run_id` as the id of its run.

        A trial can extend an earlier one: it trains that one's run further. Then the id of that run is recorded
        instead. The sampler is made anew, with a seed from the sweep's seed and the trial's number, so a conductor that
        was restarted chooses in the same way.
        """
        self._study.sampler = sampler_of(self._options, self._record.seed + number)
        trial = self._trial(number)
        suggested(trial, self._space_of(trial))
        trial.set_user_attr(_RUN, trial.user_attrs.get(_EXTENDS, {}).get(_RUN, run_id))

    def report(self, number: int, values: Sequence[tuple[int, float]], *, may_prune: bool) -> None:
        """Record the values of the metric (step, value) that a run has reported.

        With `may_prune`, the trial is marked to be stopped early if Optuna's pruner finds it worse than others.
        """
        trial = self._trial(number)
        for step, value in values:
            trial.report(value, step)
            if trial.should_prune() and may_prune:
                trial.set_user_attr(_PRUNED_AT, step)
                return

    def promote(self, number: int, after: int) -> None:
        """Record that a trial which was stopped early is to continue: its run is resumed after attempt `after`."""
        trial = self._trial(number)
        trial.set_user_attr(_GOES_ON, {"after": after, "step": trial.user_attrs.get(_PRUNED_AT)})

    def tell(self, number: int, value: float | None, *, pruned: bool, why: str) -> None:
        """Record how a trial ended: with `value`, or without one (None) because it was stopped early (`pruned`) or else
        failed. `why` is the reason of a failure, or "".
        """
        if why:
            self._trial(number).set_user_attr(_WHY, why)
        if value is not None:
            self._study.tell(number, value)
        else:
            self._study.tell(number, state=TrialState.PRUNED if pruned else TrialState.FAIL)

    def _trial(self, number: int) -> Trial:
        """Return Optuna's trial of this number."""
        study = self._storage.get_study_id_from_name(self._record.id)
        return Trial(self._study, self._storage.get_trial_id_from_study_id_trial_number(study, number))

    def _space_of(self, trial: Trial) -> Mapping[str, Dimension]:
        """Return the options from which a trial's values are chosen, each with its possible values.

        If the sweep's combinations of values (points) are listed in advance, as a grid or in a file, and the trial has
        one of them, only options that this point sets are returned.
        """
        index = trial.user_attrs.get(_POINT)
        if self._record.points is None or index is None:
            return self._options.space
        return {key: replace(self._options.space[key], when=None) for key in self._record.points[index]}

    def _point(self, index: int) -> Point | None:
        """Return the point number `index` of a grid, a file or a search that ignores results; None if it is not known
        beforehand.
        """
        if self._options.search in FORESEEN and index >= len(self._foreseen):
            self._foreseen = foreseen(self._options, self._record.seed, 2 * index + 16)
        return self._foreseen[index] if index < len(self._foreseen) else None


def _entry(one: FrozenTrial, rung: Rung | None) -> BookedTrial:
    """Return Optuna's trial as a BookedTrial, with the last rung that it has reached, or None."""
    attrs, goes_on = one.user_attrs, one.user_attrs.get(_GOES_ON, {})
    pruned_at = attrs.get(_PRUNED_AT)
    return BookedTrial(
        one.number,
        _STATES[one.state],
        dict(one.params),
        attrs.get(_RUN, ""),
        None if pruned_at == goes_on.get("step") else pruned_at,
        one.value,
        one.last_step,
        attrs.get(_WHY, ""),
        rung,
        goes_on.get("after", 0),
        tuple(attrs.get(_EXTENDS, {}).get("set", ())),
    )


def _rung(one: FrozenTrial, trials: Sequence[FrozenTrial], sign: int) -> Rung | None:
    """Return the last rung of successive halving that the trial has reached, with its place among all `trials`, or
    None.

    `sign` is 1 if larger values are better, else -1.
    """
    number = sum(key.startswith(_RUNG) for key in one.system_attrs) - 1
    if number < 0:
        return None
    key = f"{_RUNG}{number}"
    values = [other.system_attrs[key] for other in trials if key in other.system_attrs]
    better = sum(sign * value > sign * one.system_attrs[key] for value in values)
    return Rung(number, better, len(values))


def enqueue_extensions(sweep: SweepDir, trials: Sequence[tuple[TrialNote, int]], overrides: Sequence[str]) -> None:
    """Queue a new trial for each of `trials`: it has the same options, and continues that trial's run with `overrides`,
    such as more steps. `trials` are pairs (trial, the number of its run's newest attempt); the run is to be resumed
    after that attempt.

    It does no harm if the process that conducts the sweep runs meanwhile.
    """
    study = load_study(study_name=sweep.id, storage=_storage(sweep))
    for note, attempt in trials:
        extends = {_RUN: note.run, "set": [*overrides]}
        study.enqueue_trial(note.params, user_attrs={_EXTENDS: extends, _GOES_ON: {"after": attempt}})


def _storage(sweep: SweepDir) -> JournalStorage:
    """Return the sweep's Optuna storage."""
    lock = JournalFileSymlinkLock(str(sweep.journal), grace_period=_STALE_S)
    return JournalStorage(JournalFileBackend(str(sweep.journal), lock))


def mend(journal: Path) -> None:
    """Remove an unfinished last line from the journal, which a kill or a power loss has left."""
    data = read_bytes(journal) or b""
    if not data.endswith(b"\n"):
        whole = data.rfind(b"\n") + 1
        if journal.exists() and whole < len(data):
            os.truncate(journal, whole)


def forget_dead_lock(journal: Path) -> None:
    """Remove the lock file beside the journal if it is older than `_STALE_S` seconds: no process holds it that long, so
    that one that was killed must have left it.
    """
    lock = journal.with_name(f"{journal.name}.lock")
    with contextlib.suppress(FileNotFoundError):
        if time.time() - lock.lstat().st_mtime > _STALE_S:
            lock.unlink()
