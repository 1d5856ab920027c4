"""Cause + history → what happens next. Pure; `README.md` beside this file has the table.

A history is the events of all attempts so far, in order; of them only "failure" (each led to a restart, else nothing
would follow it) and "resumed" (a person began anew: budgets are full again) are looked at here.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import assert_never

from launcher.rundir.records import Event
from launcher.spec.model import Budget, Recovery
from launcher.words import Action, Cause

STEADY_S = 600.0  # a generation that ran for so long was no failed start, even where nothing was ever reported
_WENT_ON = frozenset({"regroup", "requeue"})


@dataclass(frozen=True, slots=True)
class Decision:
    action: Action
    delay_s: float
    cause: Cause  # the failure's own, or no_progress where that ends the run
    reason: str


def decide(failure: Event, history: Sequence[Event], rules: Recovery, *, can_regroup: bool) -> Decision:
    """What follows this failure, after those before it."""
    cause = failure.cause
    if cause is None:
        raise ValueError("a failure without a cause")
    budget = budget_of(rules, cause)
    if budget is None:
        return Decision(Action.END, 0.0, cause, str(cause))
    past = _since_resumed(history)
    used = sum(event.cause is cause for event in past)
    if budget.restarts is not None and used >= budget.restarts:
        return Decision(Action.END, 0.0, cause, _used_up(cause, budget.restarts))
    if cause is Cause.USER_ERROR and _recurs(failure, past):
        return Decision(Action.END, 0.0, cause, "the same error at the same place again, without progress")
    in_a_row = _without_progress(failure, past)
    if _stuck(failure, past, in_a_row, rules.no_progress):
        reason = f"no newer checkpoint over {rules.no_progress} restarts in a row"
        return Decision(Action.END, 0.0, Cause.NO_PROGRESS, reason)
    action = Action.REGROUP if can_regroup else Action.REQUEUE
    limit = "" if budget.restarts is None else f" of {budget.restarts}"
    return Decision(action, _delay_s(budget, cause, in_a_row), cause, f"restart {used + 1}{limit} for {cause}")


def budget_of(rules: Recovery, cause: Cause) -> Budget | None:
    """The spec's budget for this cause; None for those that only end runs."""
    match cause:
        case Cause.USER_ERROR:
            return rules.user_error
        case Cause.OUT_OF_MEMORY:
            return rules.out_of_memory
        case Cause.KILLED:
            return rules.killed
        case Cause.HANG:
            return rules.hang
        case Cause.COMMUNICATION:
            return rules.communication
        case Cause.NODE_LOST:
            return rules.node_lost
        case Cause.PREEMPTED:
            return rules.preempted
        case Cause.TIME_LIMIT:
            return rules.time_limit or Budget(0)
        case Cause.LAUNCHER_FAULT:
            return rules.launcher_fault
        case Cause.NO_PROGRESS | Cause.CANCELLED:
            return None
        case _:
            assert_never(cause)


def restarts_by_cause(history: Sequence[Event], attempt: int = 0) -> dict[str, int]:
    """How many restarts each cause has had: its failures after which the run went on by itself.

    `attempt` is the one that runs now, where it has left no event yet.
    """
    counts: Counter[str] = Counter()
    open_failures: list[Event] = []
    for event in history:
        if open_failures and (event.kind in _WENT_ON or event.attempt > open_failures[-1].attempt):
            if event.kind != "resumed":
                counts.update(str(failure.cause) for failure in open_failures)
            open_failures = []
        if event.kind == "failure":
            open_failures.append(event)
    counts.update(str(failure.cause) for failure in open_failures if failure.attempt < attempt)
    return dict(counts)


def _since_resumed(history: Sequence[Event]) -> list[Event]:
    failures: list[Event] = []
    for event in history:
        if event.kind == "resumed":
            failures = []
        elif event.kind == "failure":
            failures.append(event)
    return failures


def _used_up(cause: Cause, restarts: int) -> str:
    if restarts == 0:
        return f"no restart is allowed for {cause}"
    return f"the budget of {restarts} restart{'s' if restarts > 1 else ''} for {cause} is used up"


def _recurs(failure: Event, past: Sequence[Event]) -> bool:
    """The last user error was at the same place, and the run has not come further since."""
    before = next((event for event in reversed(past) if event.cause is Cause.USER_ERROR), None)
    if before is None or before.where != failure.where:
        return False
    if failure.checkpoint is not None or before.checkpoint is not None:
        return not _newer(failure.checkpoint, before.checkpoint)
    return not _newer(failure.step, before.step)


def _is_mute(failure: Event) -> bool:
    """The run has never reported anything that could show how far it has come."""
    return failure.step is None and failure.checkpoint is None


def _newer(now: int | None, before: int | None) -> bool:
    return now is not None and (before is None or now > before)


def _without_progress(failure: Event, past: Sequence[Event]) -> int:
    """This failure and those right before it that no newer checkpoint lies between; preemptions do not count."""
    count = 1
    if _is_mute(failure) and failure.ran_s >= STEADY_S:
        return count
    for event in reversed(past):
        if event.cause is Cause.PREEMPTED:
            continue
        if _newer(failure.checkpoint, event.checkpoint):
            break
        count += 1
    return count


def _stuck(failure: Event, past: Sequence[Event], in_a_row: int, limit: int | None) -> bool:
    if limit is None or failure.cause is Cause.PREEMPTED or in_a_row <= limit:
        return False
    # A run that never reports may well be getting on: nobody can tell.
    return any(event.step is not None or event.checkpoint is not None for event in (*past, failure))


def _delay_s(budget: Budget, cause: Cause, in_a_row: int) -> float:
    if in_a_row <= 1 or cause is Cause.PREEMPTED:
        return 0.0
    return float(min(budget.backoff_max_s, budget.backoff_s * 2 ** min(in_a_row - 2, 60)))
