"""What a conductor does next, given how each trial and its run are: pure.

A trial is open until Optuna has been told how it ended. Nothing here asks whether something has been done before: each
action can be done again after a kill, and is told to be done as long as the trials look as if it had not been.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import assert_never

from launcher.words import State

MOST_REVIVALS = 5


@dataclass(frozen=True, slots=True)
class TrialRun:
    """The run of a trial, as it is now."""

    state: State
    value: float | None = None  # the newest of the metric
    message: str = ""
    revivals: int = 0


@dataclass(frozen=True, slots=True)
class TrialView:
    """A trial, as Optuna's journal and its run say."""

    number: int
    open: bool
    failed: bool = False
    pruning: bool = False  # it was decided that it ends early
    run: TrialRun | None = None  # None: not started yet


@dataclass(frozen=True, slots=True)
class Aim:
    """What a person wants of the sweep."""

    trials: int
    parallel: int
    failures: int | None
    metric: str
    in_time: bool = True
    stopping: bool = False
    reviving: bool = False  # what was stopped goes on


@dataclass(frozen=True, slots=True)
class NextTrial:
    """Ask for one more point."""


@dataclass(frozen=True, slots=True)
class StartTrial:
    number: int


@dataclass(frozen=True, slots=True)
class CancelTrial:
    number: int


@dataclass(frozen=True, slots=True)
class ReviveTrial:
    number: int


@dataclass(frozen=True, slots=True)
class TellTrial:
    """How it ended: with a value, pruned, or, for this reason, failed."""

    number: int
    value: float | None = None
    pruned: bool = False
    why: str = ""


@dataclass(frozen=True, slots=True)
class EndSweep:
    state: str
    message: str


TrialAction = StartTrial | CancelTrial | ReviveTrial | TellTrial
Next = NextTrial | EndSweep | TrialAction


def next_actions(trials: Sequence[TrialView], aim: Aim) -> list[Next]:
    """In their order; at most one new trial, whose point may depend on all that is known before."""
    still_open = [one for one in trials if one.open]
    found: list[Next] = [action for one in still_open for action in _of(one, aim)]
    reason = why_no_more(trials, aim)
    if not reason and len(still_open) < aim.parallel:
        found.append(NextTrial())
    if aim.stopping and all(one.run is None or one.run.state.ended for one in still_open) and not found:
        return [EndSweep("stopped", "stopped: launch sweep resume goes on")]
    if reason and not still_open and not aim.stopping:
        failed = aim.failures is not None and sum(one.failed for one in trials) >= aim.failures
        return [EndSweep("failed" if failed else "succeeded", reason)]
    return found


def why_no_more(trials: Sequence[TrialView], aim: Aim) -> str:
    """Why no further trial begins; "" where one does."""
    failed = sum(one.failed for one in trials)
    if aim.stopping:
        return "it is being stopped"
    if aim.failures is not None and failed >= aim.failures:
        return f"{failed} trials have failed"
    if len(trials) >= aim.trials:
        return f"all {len(trials)} trials are done"
    return "" if aim.in_time else "its time is over"


def _of(trial: TrialView, aim: Aim) -> Iterator[TrialAction]:
    run, number = trial.run, trial.number
    if run is None:
        if not aim.stopping:
            yield StartTrial(number)
        return
    match run.state:
        case State.SUCCEEDED | State.FAILED | State.CANCELLED if trial.pruning:
            yield TellTrial(number, pruned=True)
        case State.SUCCEEDED:
            yield _valued(number, run.value, aim.metric)
        case State.FAILED:
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
    if aim.reviving:
        yield ReviveTrial(number)
    elif not aim.stopping:
        yield TellTrial(number, why="its run was cancelled")


def _of_lost(number: int, run: TrialRun, aim: Aim) -> Iterator[TrialAction]:
    if run.revivals >= MOST_REVIVALS:
        yield TellTrial(number, why=f"its run was lost {run.revivals + 1} times")
    elif not aim.stopping:
        yield ReviveTrial(number)


def _valued(number: int, value: float | None, metric: str) -> TellTrial:
    if value is None:
        return TellTrial(number, why=f"it has never reported {metric}")
    return TellTrial(number, value) if math.isfinite(value) else TellTrial(number, why=f"{metric} is {value}")
