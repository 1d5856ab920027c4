"""Cause + history → what happens next. Pure."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from launcher.rundir.records import Event
from launcher.spec.model import Budget, Recovery
from launcher.words import Action, Cause


@dataclass(frozen=True, slots=True)
class Decision:
    action: Action
    delay_s: float
    cause: Cause
    reason: str


def decide(failure: Event, history: Sequence[Event], rules: Recovery, *, can_regroup: bool) -> Decision:
    """What follows this failure, after those of all attempts before it."""
    cause = failure.cause
    assert cause is not None
    if cause in (Cause.CANCELLED, Cause.NO_PROGRESS):
        return Decision(Action.END, 0.0, cause, cause.value)
    past = [event for event in history if event.kind == "failure"]
    budget = budget_of(rules, cause)
    used = sum(event.cause is cause for event in past)
    if budget.restarts is not None and used >= budget.restarts:
        return Decision(Action.END, 0.0, cause, f"{cause}: its budget of {budget.restarts} restarts is used up")
    if cause is Cause.USER_ERROR and _recurs(failure, past):
        return Decision(Action.END, 0.0, cause, "the same error at the same place again, without progress")
    idle = _failures_since_progress(failure, past)
    if rules.no_progress is not None and cause is not Cause.PREEMPTED and _reports(failure, past) and idle > rules.no_progress:
        return Decision(Action.END, 0.0, Cause.NO_PROGRESS, f"no newer checkpoint over {rules.no_progress} restarts")
    delay_s = 0.0 if idle <= 1 or cause is Cause.PREEMPTED else min(budget.backoff_max_s, budget.backoff_s * 2 ** min(idle - 2, 30))
    action = Action.REGROUP if can_regroup else Action.REQUEUE
    return Decision(action, delay_s, cause, f"restart {used + 1} for {cause}")


def restarts_by_cause(history: Sequence[Event]) -> dict[str, int]:
    """How many restarts each cause has had."""
    return dict(Counter(str(event.cause) for event in history if event.kind == "restart"))


def budget_of(rules: Recovery, cause: Cause) -> Budget:
    budget = getattr(rules, cause.value)
    assert isinstance(budget, Budget)
    return budget


def _recurs(failure: Event, past: Sequence[Event]) -> bool:
    before = next((event for event in reversed(past) if event.cause is Cause.USER_ERROR), None)
    if before is None or before.where != failure.where:
        return False
    return _mark(failure) <= _mark(before)


def _mark(event: Event) -> tuple[int, int]:
    """How far a run had come: by checkpoints where it makes any, else by steps."""
    return (event.checkpoint if event.checkpoint is not None else -1, -1 if event.checkpoint is not None else event.step or -1)


def _reports(failure: Event, past: Sequence[Event]) -> bool:
    return any(event.step is not None or event.checkpoint is not None for event in (*past, failure))


def _failures_since_progress(failure: Event, past: Sequence[Event]) -> int:
    """This failure and those right before it that no newer checkpoint lies between."""
    count = 1
    for event in reversed([event for event in past if event.cause is not Cause.PREEMPTED]):
        if (event.checkpoint or -1) < (failure.checkpoint or -1):
            break
        count += 1
    return count
