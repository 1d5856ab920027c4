"""Choose the next actions of a sweep from the state of each trial and its run. A trial is open until its result is
recorded in Optuna. With successive halving, trials are compared at certain steps, called rungs, and only the best
continue. The aim (Aim) is the sweep's settings and the user's orders as they are now. Pure; an action is returned until
the trials show that it was done.
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
    """The present state of a trial's run: the last `value` of the metric once it has ended, the names of all
    metrics that it `reported`, how often it was resumed after a loss (`revivals`), and its newest attempt.
    """

    state: State
    value: float | None = None  # the last value of the sweep's metric; None: none was reported, or it is active
    message: str = ""  # why the run is in its state
    reported: tuple[str, ...] = ()  # names of all metrics that it has reported
    revivals: int = 0
    attempt: int = 1


@dataclass(frozen=True, slots=True)
class Rung:
    """The last rung that a trial has reached: its number, how many trials have reached it so far (`of`), and how many
    of these had a better value there than this trial (`better`).
    """

    number: int
    better: int  # how many trials that have reached it are better
    of: int  # how many trials have reached it

    def is_climbed(self, factor: int) -> bool:
        """Return whether the trial is among the best `1/factor` at its rung; the best one always is."""
        return self.better < max(1, self.of // factor)


@dataclass(frozen=True, slots=True)
class TrialView:
    """A trial with its result in Optuna, if it is not `open`, and the state of its run (None: not started). `pruning`:
    it is to be stopped early. `rung` is the last rung that it reached. `goes_on_after` is the attempt of its run after
    which the run has to be resumed (0: none).
    """

    number: int
    open: bool
    failed: bool = False  # its result is a failure
    why: str = ""  # the reason why it failed, or ""
    pruning: bool = False  # it is to be stopped early
    rung: Rung | None = None  # the last one that it has reached
    goes_on_after: int = 0  # the attempt of its run after which the run is to be resumed; 0: none
    run: TrialRun | None = None  # None: not started


@dataclass(frozen=True, slots=True)
class Aim:
    """The settings of the sweep as they are now: how many `trials` in total and in `parallel`, and after how many
    `failures` no new one starts. `in_time`: the time limit is not reached. `stopping` and `reviving`: the user ordered
    to stop, or to resume. `factor` is that of successive halving, or None.
    """

    trials: int
    parallel: int
    failures: int | None  # None: no number of failures ends the sweep
    metric: str  # by which trials are compared
    in_time: bool = True
    stopping: bool = False
    reviving: bool = False  # the user ordered to resume what was stopped
    factor: int | None = None  # of successive halving, in which a trial stopped at a rung may continue later; else None


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
    """The action to resume the run of a trial after it was lost or cancelled."""

    number: int


@dataclass(frozen=True, slots=True)
class PromoteTrial:
    """The action to record that a trial which was stopped at a rung is to continue, upon which its run is resumed.
    `after` is the number of the run's last attempt, which the resumed one follows.
    """

    number: int
    after: int


@dataclass(frozen=True, slots=True)
class TellTrial:
    """The action to record in Optuna how a trial ended: with a value, stopped early (`pruned`), or failed for the
    reason `why`.
    """

    number: int
    value: float | None = None  # None: it was stopped early or failed
    pruned: bool = False
    why: str = ""


@dataclass(frozen=True, slots=True)
class EndSweep:
    """The action to end the sweep: it is stopped, has succeeded or has failed (`state`), for the reason in
    `message`.
    """

    state: str
    message: str


TrialAction = StartTrial | CancelTrial | ReviveTrial | PromoteTrial | TellTrial
Next = NextTrial | EndSweep | TrialAction


def next_actions(trials: Sequence[TrialView], aim: Aim) -> list[Next]:
    """Return the next actions in order; an empty list if there is nothing to do but to wait for runs.

    At most one trial is created or continued, because that choice may depend on all earlier results.
    """
    still_open = [one for one in trials if one.open]
    paused = [one for one in still_open if is_paused(one, aim)]
    active = [one for one in still_open if one not in paused]
    found: list[Next] = [action for one in active for action in _actions_for(one, aim)]
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
    """Return whether a trial is open and its run was cancelled."""
    return trial.open and trial.run is not None and trial.run.state is State.CANCELLED


def is_paused(trial: TrialView, aim: Aim) -> bool:
    """Return whether a trial was stopped at a rung, and may continue once it is among the best there."""
    return is_cancelled(trial) and trial.pruning and aim.factor is not None and trial.rung is not None


def promotable(paused: Sequence[TrialView], aim: Aim) -> list[TrialView]:
    """Return the paused trials that may continue, the furthest first: those among the best `1/aim.factor` of the trials
    that have reached their rung.
    """
    factor = aim.factor
    found = [one for one in paused if factor is not None and one.rung is not None and one.rung.is_climbed(factor)]
    return sorted(found, key=lambda one: (-one.rung.number if one.rung is not None else 0, one.number))


def _promoted(trial: TrialView) -> PromoteTrial:
    """Return the action that resumes the run of a trial that was paused at a rung and is now among the best there."""
    return PromoteTrial(trial.number, trial.run.attempt if trial.run is not None else 0)


def why_nothing_begins(trials: Sequence[TrialView], aim: Aim) -> str:
    """Return the reason why no trial may start or continue now, or "" if one may: the sweep is being stopped, as many
    trials have failed as the setting `failures` of `aim` allows, or the first ones all alike, or its time is over.
    """
    failed = sum(one.failed for one in trials)
    if aim.stopping:
        return "it is being stopped"
    if aim.failures is not None and failed >= aim.failures:
        return f"{failed} trials have failed"
    if aim.failures is not None and fails_alike(trials):
        return f"the first {failed} trials have failed alike"
    return "" if aim.in_time else _LATE


def fails_alike(trials: Sequence[TrialView]) -> bool:
    """Return whether at least `ALIKE` (three) trials are over, and all that are over have failed for the same reason,
    apart from numbers in its text.
    """
    over = [one for one in trials if not one.open]
    reasons = {_alike(one.why) for one in over}
    return len(over) >= ALIKE and all(one.failed for one in over) and len(reasons) == 1 and reasons != {""}


def _alike(why: str) -> str:
    """Return a failure's reason without its numbers, so that the reasons of different trials can be compared."""
    return re.sub(r"\d+(?:\.\d+)?(?:[eE][-+]?\d+)?", "#", why)


def _commonest(trials: Sequence[TrialView]) -> str:
    """Return the most frequent reason for which the `trials`, all of them failed, have failed, and how many have failed
    for it, as text such as `3 of 5: REASON`. Reasons that differ only in numbers count as one.
    """
    counts = Counter(_alike(one.why) for one in trials)
    reason, count = counts.most_common(1)[0]
    why = next(one.why for one in trials if _alike(one.why) == reason) or "their runs failed"
    return f"{count} of {len(trials)}: {why}" if count < len(trials) else f"of each: {why}"


def why_no_more(trials: Sequence[TrialView], aim: Aim) -> str:
    """Return the reason why no further trial will start, or "" if one may: all wanted trials exist, or no trial may
    begin, as `why_nothing_begins` says.
    """
    closed = why_nothing_begins(trials, aim)
    if len(trials) >= aim.trials and closed in ("", _LATE):
        return f"all {len(trials)} trials are done"
    return closed


def _actions_for(trial: TrialView, aim: Aim) -> Iterator[TrialAction]:
    """Yield the next actions for one open trial: start its run, resume it, cancel it, or record its result once it has
    ended.

    Nothing is yielded while the run goes on undisturbed, or its state is unknown.
    """
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
            yield from _actions_if_cancelled(number, aim)
        case State.LOST:
            yield from _actions_if_lost(number, run, aim)
        case State.QUEUED | State.STARTING | State.RUNNING | State.REGROUPING:
            if trial.pruning or aim.stopping:
                yield CancelTrial(number)
        case State.UNKNOWN:
            return
        case _:
            assert_never(run.state)


def _actions_if_cancelled(number: int, aim: Aim) -> Iterator[TrialAction]:
    """Yield the next action for trial `number`, whose run was cancelled: resume it if the user ordered that, record it
    as failed, or nothing while the sweep is being stopped.
    """
    if aim.reviving:
        yield ReviveTrial(number)
    elif not aim.stopping:
        yield TellTrial(number, why="its run was cancelled")


def _actions_if_lost(number: int, run: TrialRun, aim: Aim) -> Iterator[TrialAction]:
    """Yield the next action for trial `number`, whose run was lost: resume it, or record it as failed once it was
    resumed MOST_REVIVALS times.

    While the sweep is being stopped no run is resumed: there is no action, and the trial stays open.
    """
    if run.revivals >= MOST_REVIVALS:
        yield TellTrial(number, why=f"its run was lost {run.revivals + 1} times")
    elif not aim.stopping:
        yield ReviveTrial(number)


def _valued(number: int, run: TrialRun, metric: str) -> TellTrial:
    """Return the action that records trial `number`, whose run has succeeded: with the last value of `metric`, or as
    failed if there is no value or it is not finite; the reason then names the metric.
    """
    value = run.value
    if value is None:
        others = f"; it has reported {', '.join(run.reported)}" if run.reported else ", nor anything else"
        return TellTrial(number, why=f"it has never reported {metric}{others}")
    return TellTrial(number, value) if math.isfinite(value) else TellTrial(number, why=f"{metric} is {value}")
