"""Choose the conductor's next actions from the state of each trial and its run.

A trial is open until Optuna has its result. Every action can be repeated after a kill, and is returned until the
trials show that it was done.
"""

import math
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import assert_never

from launcher.states import State

MOST_REVIVALS = 5
ALIKE = 3  # so many failures for one reason, and nothing else: the next trial would fail, too
_LATE = "its time is over"


@dataclass(frozen=True, slots=True)
class TrialRun:
    """The present state of a trial's run."""

    state: State
    value: float | None = None  # the newest of the metric
    message: str = ""
    reported: tuple[str, ...] = ()  # names of what it has measured
    revivals: int = 0
    attempt: int = 1


@dataclass(frozen=True, slots=True)
class Rung:
    """A step of successive halving at which trials are compared, and a trial's rank among them."""

    number: int
    better: int  # how many of those that have come to it are better
    of: int

    def is_climbed(self, factor: int) -> bool:
        """Return whether this trial is among the best `1/factor` of its rung; the best one always is."""
        return self.better < max(1, self.of // factor)


@dataclass(frozen=True, slots=True)
class TrialView:
    """A trial with its state in Optuna's journal and that of its run."""

    number: int
    open: bool
    failed: bool = False
    why: str = ""  # it failed
    pruning: bool = False  # it was decided that it ends early
    rung: Rung | None = None  # the last one that it has come to, where it may go on from there
    goes_on_after: int = 0  # the attempt of its run that is to be followed by another one
    run: TrialRun | None = None  # None: not started yet


@dataclass(frozen=True, slots=True)
class Aim:
    """The user's settings of the sweep."""

    trials: int
    parallel: int
    failures: int | None
    metric: str
    in_time: bool = True
    stopping: bool = False
    reviving: bool = False  # what was stopped goes on
    factor: int | None = None  # of successive halving, where who is stopped at a rung may go on later


@dataclass(frozen=True, slots=True)
class NextTrial:
    """The action to create one more trial."""


@dataclass(frozen=True, slots=True)
class StartTrial:
    """The action to start the run of a trial."""

    number: int


@dataclass(frozen=True, slots=True)
class CancelTrial:
    """The action to cancel the run of a trial."""

    number: int


@dataclass(frozen=True, slots=True)
class ReviveTrial:
    """The action to resume the run of a trial, which was lost or cancelled."""

    number: int


@dataclass(frozen=True, slots=True)
class PromoteTrial:
    """The action to resume a trial that was stopped at a rung: its run's next attempt follows attempt `after`."""

    number: int
    after: int


@dataclass(frozen=True, slots=True)
class TellTrial:
    """The action to record in Optuna how a trial ended: with a value, pruned, or failed for the reason `why`."""

    number: int
    value: float | None = None
    pruned: bool = False
    why: str = ""


@dataclass(frozen=True, slots=True)
class EndSweep:
    """The action to end the sweep in a state."""

    state: str
    message: str


TrialAction = StartTrial | CancelTrial | ReviveTrial | PromoteTrial | TellTrial
Next = NextTrial | EndSweep | TrialAction


def next_actions(trials: Sequence[TrialView], aim: Aim) -> list[Next]:
    """Return the next actions in order; at most one trial begins or resumes, because the choice may depend on all
    earlier results.
    """
    still_open = [one for one in trials if one.open]
    paused = [one for one in still_open if is_paused(one, aim)]
    active = [one for one in still_open if one not in paused]
    found: list[Next] = [action for one in active for action in _of(one, aim)]
    closed, reason = why_nothing_begins(trials, aim), why_no_more(trials, aim)
    if not closed and len(active) < aim.parallel:
        found += [_promoted(one) for one in promotable(paused, aim)[:1]] or ([] if reason else [NextTrial()])
    if aim.stopping and all(one.run is None or one.run.state.ended for one in still_open) and not found:
        return [EndSweep("stopped", "stopped: launch sweep resume goes on")]
    if reason and not active and not found and not aim.stopping:
        if paused:
            return [TellTrial(one.number, pruned=True) for one in paused]
        failed = aim.failures is not None and sum(one.failed for one in trials) >= aim.failures
        if trials and all(one.failed for one in trials):
            return [EndSweep("failed", f"{reason}: none has come to a value; {_commonest(trials)}")]
        return [EndSweep("failed" if failed else "succeeded", reason)]
    return found


def is_cancelled(trial: TrialView) -> bool:
    """Return whether an open trial's run was cancelled."""
    return trial.open and trial.run is not None and trial.run.state is State.CANCELLED


def is_paused(trial: TrialView, aim: Aim) -> bool:
    """Return whether a trial was stopped at a rung with its checkpoint; it resumes when it is among the best of that
    rung.
    """
    return is_cancelled(trial) and trial.pruning and aim.factor is not None and trial.rung is not None


def promotable(paused: Sequence[TrialView], aim: Aim) -> list[TrialView]:
    """Return the paused trials that may resume, the furthest first."""
    factor = aim.factor
    found = [one for one in paused if factor is not None and one.rung is not None and one.rung.is_climbed(factor)]
    return sorted(found, key=lambda one: (-one.rung.number if one.rung is not None else 0, one.number))


def _promoted(trial: TrialView) -> PromoteTrial:
    """Return the action that resumes a paused trial."""
    return PromoteTrial(trial.number, trial.run.attempt if trial.run is not None else 0)


def why_nothing_begins(trials: Sequence[TrialView], aim: Aim) -> str:
    """Return why no trial begins or resumes, or "" if one may."""
    failed = sum(one.failed for one in trials)
    if aim.stopping:
        return "it is being stopped"
    if aim.failures is not None and failed >= aim.failures:
        return f"{failed} trials have failed"
    if aim.failures is not None and fails_alike(trials):
        return f"the first {failed} trials have failed alike"
    return "" if aim.in_time else _LATE


def fails_alike(trials: Sequence[TrialView]) -> bool:
    """Return whether all trials that are over have failed for the same reason, and are enough to stop the sweep."""
    over = [one for one in trials if not one.open]
    reasons = {_alike(one.why) for one in over}
    return len(over) >= ALIKE and all(one.failed for one in over) and len(reasons) == 1 and reasons != {""}


def _alike(why: str) -> str:
    """Return a reason without its numbers, which differ from trial to trial."""
    return re.sub(r"\d+(?:\.\d+)?(?:[eE][-+]?\d+)?", "#", why)


def _commonest(trials: Sequence[TrialView]) -> str:
    """Return the most frequent reason of failed trials, as the first of them states it."""
    counts = Counter(_alike(one.why) for one in trials)
    reason, count = counts.most_common(1)[0]
    why = next(one.why for one in trials if _alike(one.why) == reason) or "their runs failed"
    return f"{count} of {len(trials)}: {why}" if count < len(trials) else f"of each: {why}"


def why_no_more(trials: Sequence[TrialView], aim: Aim) -> str:
    """Return why no further trial begins, or "" if another may."""
    closed = why_nothing_begins(trials, aim)
    if len(trials) >= aim.trials and closed in ("", _LATE):
        return f"all {len(trials)} trials are done"
    return closed


def _of(trial: TrialView, aim: Aim) -> Iterator[TrialAction]:
    """Yield the actions for one trial."""
    run, number = trial.run, trial.number
    if run is None:
        if not aim.stopping:
            yield StartTrial(number)
        return
    if run.state.ended and run.attempt == trial.goes_on_after:
        if not aim.stopping:
            yield ReviveTrial(number)
        return
    match run.state:
        case State.SUCCEEDED | State.FAILED | State.INTERRUPTED | State.CANCELLED if trial.pruning:
            yield TellTrial(number, pruned=True)
        case State.SUCCEEDED:
            yield _valued(number, run, aim.metric)
        case State.FAILED | State.INTERRUPTED:
            yield TellTrial(number, why=run.message or "its run failed")
        case State.CANCELLED:
            yield from _of_cancelled(number, aim)
        case State.LOST:
            yield from _of_lost(number, run, aim)
        case State.QUEUED | State.STARTING | State.RUNNING | State.REGROUPING:
            if trial.pruning or aim.stopping:
                yield CancelTrial(number)
        case State.UNKNOWN:
            return
        case _:
            assert_never(run.state)


def _of_cancelled(number: int, aim: Aim) -> Iterator[TrialAction]:
    """Yield the actions for a trial whose run was cancelled."""
    if aim.reviving:
        yield ReviveTrial(number)
    elif not aim.stopping:
        yield TellTrial(number, why="its run was cancelled")


def _of_lost(number: int, run: TrialRun, aim: Aim) -> Iterator[TrialAction]:
    """Yield the actions for a trial whose run was lost."""
    if run.revivals >= MOST_REVIVALS:
        yield TellTrial(number, why=f"its run was lost {run.revivals + 1} times")
    elif not aim.stopping:
        yield ReviveTrial(number)


def _valued(number: int, run: TrialRun, metric: str) -> TellTrial:
    """Return how a trial that completed is recorded: with its value, or failed for lack of one."""
    value = run.value
    if value is None:
        others = f"; it has reported {', '.join(run.reported)}" if run.reported else ", nor anything else"
        return TellTrial(number, why=f"it has never reported {metric}{others}")
    return TellTrial(number, value) if math.isfinite(value) else TellTrial(number, why=f"{metric} is {value}")
