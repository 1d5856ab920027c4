"""Choose what follows a failure from its cause, the history and the budgets (`Recovery` in `spec/model.py`). Pure. A
generation is one set of ranks that train together; the past (`past`) is the run's earlier failures, oldest first. An
attempt is one batch job, or one start on a pool's hosts.

The history is all events of all attempts in order. Only three kinds matter here: "failure" (each was followed by a
restart, since the run went on), "explained" (the cause of an attempt's last failure was another one) and "resumed" (a
user resumed the run, which resets all budgets).
"""

import signal
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import assert_never

from msgspec.structs import replace

from launcher.run.records import EXPLAINED, Event
from launcher.spec.model import Budget, Recovery
from launcher.states import Action, Cause, ErrorKind

STEADY_S = 600.0  # a generation that ran for so long was no failed start, even where nothing was ever reported
# What a program does to itself. Others come from elsewhere, as SIGKILL does.
_CRASHES = frozenset({signal.SIGSEGV, signal.SIGABRT, signal.SIGFPE, signal.SIGILL})
_WENT_ON = frozenset({"regroup", "requeue"})


@dataclass(frozen=True, slots=True)
class Decision:
    """The reaction to a failure: the action, the delay before it, the cause, and the reason in words."""

    action: Action
    delay_s: float
    cause: Cause  # the failure's cause, or no_progress if the run ends for that
    reason: str


def decide(failure: Event, history: Sequence[Event], rules: Recovery, *, can_regroup: bool) -> Decision:
    """Choose the recovery action for `failure`, given the earlier failures in the run's `history` and the budgets in
    `rules`.

    `can_regroup` says whether a new generation is possible in this attempt; otherwise the run is requeued. A number of
    restarts that the user set is honoured: the run does not end earlier, unless a file is missing that no restart can
    bring, or `no_progress` ends it. Raise ValueError if `failure` has no cause.
    """
    cause = failure.cause
    if cause is None:
        raise ValueError("a failure without a cause")
    budget = budget_of(rules, cause)
    if budget is None:
        return Decision(Action.END, 0.0, cause, str(cause))
    if cause is Cause.USER_ERROR and failure.left_out:
        return Decision(
            Action.END, 0.0, cause, f"{failure.left_out} was not frozen with the code: it would be missed again"
        )
    past = _since_resumed(history)
    used = _used(failure, past, budget.refill_s)
    if budget.restarts is not None and used >= budget.restarts:
        return Decision(Action.END, 0.0, cause, _used_up(cause, budget.restarts))
    if cause is Cause.USER_ERROR and not budget.explicit:
        if why := _will_recur(failure, past):
            return Decision(Action.END, 0.0, cause, why)
        if _recurs(failure, past):
            return Decision(Action.END, 0.0, cause, "the same error at the same place again, without progress")
    if cause is Cause.KILLED and not budget.explicit and _crashes_again(failure, past):
        return Decision(Action.END, 0.0, cause, "the same crash at the same step again, without progress")
    if cause is Cause.HANG and not budget.explicit and _out_of_step_again(failure, past):
        return Decision(Action.END, 0.0, Cause.USER_ERROR, f"twice at the same step: {failure.text}")
    row = _without_progress(failure, past)
    if _stuck(row, rules.no_progress):
        return Decision(Action.END, 0.0, Cause.NO_PROGRESS, _no_progress(row))
    action = Action.REGROUP if can_regroup else Action.REQUEUE
    limit = "" if budget.restarts is None else f" of {budget.restarts}"
    in_a_row = _preemptions(failure, past) if cause is Cause.PREEMPTED else len(row)
    return Decision(action, _delay_s(budget, in_a_row), cause, f"restart {used + 1}{limit} for {cause}")


def budget_of(rules: Recovery, cause: Cause) -> Budget | None:
    """Return the spec's budget for this cause, or None for a cause that always ends the run."""
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
        case Cause.DISK:
            return rules.disk
        case Cause.NO_PROGRESS | Cause.NO_CHECKPOINT | Cause.CANCELLED:
            return None
        case _:
            assert_never(cause)


def restarts_by_cause(history: Sequence[Event], attempt: int = 0) -> dict[str, int]:
    """Return how many restarts each cause has had, counted as failures after which the run continued by itself.

    A failure that ended an attempt counts once a later attempt exists: one that has recorded an event, or the present
    one, whose number is `attempt` (0: not known).
    """
    counts: Counter[str] = Counter()
    open_failures: list[Event] = []
    for event in as_explained(history):
        if open_failures and (event.kind in _WENT_ON or event.attempt > open_failures[-1].attempt):
            if event.kind != "resumed":
                counts.update(str(failure.cause) for failure in open_failures)
            open_failures = []
        if event.kind == "failure":
            open_failures.append(event)
        elif event.kind == "ending":
            open_failures = []  # the next attempt, if any, only ends the run
    counts.update(str(failure.cause) for failure in open_failures if failure.attempt < attempt)
    return dict(counts)


def as_explained(history: Sequence[Event]) -> list[Event]:
    """Return all events of `history`, each failure with its final cause: if a later event explains the last failure of
    an attempt, that failure gets the cause in this event, in place of the one that it was recorded with.
    """
    causes = {event.attempt: event.cause for event in history if event.kind == EXPLAINED}
    last = {event.attempt: index for index, event in enumerate(history) if event.kind == "failure"}
    found = list(history)
    for attempt in causes.keys() & last.keys():
        found[last[attempt]] = replace(found[last[attempt]], cause=causes[attempt])
    return found


def _since_resumed(history: Sequence[Event]) -> list[Event]:
    """Return the failures since a user last resumed the run. If an event later than an attempt's last failure explains
    that failure, it is returned with the cause in that event.
    """
    failures: list[Event] = []
    for event in as_explained(history):
        if event.kind == "resumed":
            failures = []
        elif event.kind == "failure":
            failures.append(event)
    return failures


def _used(failure: Event, past: Sequence[Event], refill_s: float | None) -> int:
    """Return how many of the `past` failures, each of which used a restart, had the cause of `failure`.

    Failures before the last `refill_s` seconds of training no longer count; with None all count.
    """
    used, trained_s, next_ = 0, 0.0, failure
    for event in reversed(past):
        trained_s += next_.ran_s if _got_on(next_, event) else 0.0
        if refill_s is not None and trained_s >= refill_s:
            break
        used += event.cause is failure.cause
        next_ = event
    return used


def _used_up(cause: Cause, restarts: int) -> str:
    """Return the text that no restart is left for `cause`; `restarts` is how many its budget allows in all, and 0 means
    none.
    """
    if restarts == 0:
        return f"no restart is allowed for {cause}"
    return f"the budget of {restarts} restart{'s' if restarts > 1 else ''} for {cause} is used up"


def _will_recur(failure: Event, past: Sequence[Event]) -> str:
    """Return why another start would fail in the same way, or "" if that is not certain.

    It is certain only for a run that never came beyond its start: the exception then is the program's own, and only
    exceptions of some types may go away with time.
    """
    if any(event.steps_in_all or event.ran_s >= STEADY_S for event in (failure, *past)):
        return ""
    match failure.error_kind:
        case ErrorKind.EXCEPTION:
            return "an exception before the first step, of a type that another start does not mend"
        case ErrorKind.MODULE:
            return "a module that it imports is not there: another start would miss it again"
        case ErrorKind.USAGE:
            return (
                "the script left by itself before the first step, as over a wrong argument; run.args has its arguments"
            )
        case ErrorKind.PASSING | ErrorKind.OTHER | None:
            return ""
        case _:
            assert_never(failure.error_kind)


def _recurs(failure: Event, past: Sequence[Event]) -> bool:
    """Return whether the last user error in `past` was the same as `failure` and the run has made no progress since:
    no newer checkpoint or, in a run without checkpoints, no later step.

    Two errors are the same if the same exception was raised at the same place, or, without an exception, if the exit
    code and the last line are equal.
    """
    before = next((event for event in reversed(past) if event.cause is Cause.USER_ERROR), None)
    if before is None or _identity(before) != _identity(failure):
        return False
    if failure.checkpoint is not None or before.checkpoint is not None:
        return not _newer(failure.checkpoint, before.checkpoint)
    return not _newer(failure.step, before.step)


def _identity(error: Event) -> tuple[str | int | None, ...]:
    """Return a key that is equal for equal user errors: the frame of user code that raised the exception or, if it is
    not known, the exit code and the last line of the rank's log.
    """
    return (error.where,) if error.where is not None else (None, error.code, error.said)


def _crashes_again(failure: Event, past: Sequence[Event]) -> bool:
    """Return whether `failure` repeats the last crash in `past`: both had the same signal, the run made no progress in
    between (`_got_on`), and both were at about the same point.

    That means steps that differ by at most one; or, if both steps are unknown, the same frame of user code. If only one
    step is known, it is no repetition.
    """
    before = next((event for event in reversed(past) if event.signal in _CRASHES), None)
    if before is None or before.signal != failure.signal or _got_on(failure, before):
        return False
    if failure.step is None or before.step is None:
        return (failure.step, failure.where) == (before.step, before.where)
    return abs(failure.step - before.step) <= 1  # the other ranks may have been one ahead


def _out_of_step_again(failure: Event, past: Sequence[Event]) -> bool:
    """Return whether the last hang in `past` was of the same kind at the same source lines as `failure`, and at a step
    that differs by at most one, so that a restart would not help.
    """
    before = next((event for event in reversed(past) if event.cause is Cause.HANG), None)
    if before is None or not failure.same or before.same != failure.same or _got_on(failure, before):
        return False
    if failure.step is None or before.step is None:
        return failure.step == before.step
    return abs(failure.step - before.step) <= 1  # the other ranks may have been one ahead


def _got_on(failure: Event, before: Event) -> bool:
    """Return whether the run progressed between the failures `before` and `failure`: at `failure` it had a newer
    checkpoint or, if ranks continued in place after `before`, was at a later step.

    If `failure` has neither a step nor a checkpoint, ten minutes in its generation (STEADY_S) count as progress.
    """
    if failure.step is None and failure.checkpoint is None:
        return failure.ran_s >= STEADY_S
    return _further(failure, before)


def _further(failure: Event, before: Event) -> bool:
    """Return whether the run had got further at `failure` than at the failure `before`: it had a newer checkpoint, or,
    if survivors continued in place after `before`, which needs no checkpoint, it was at a later step.
    """
    return _newer(failure.checkpoint, before.checkpoint) or (before.in_place and _newer(failure.step, before.step))


def _newer(now: int | None, before: int | None) -> bool:
    """Return whether `now` is larger than `before`, or is the first number where `before` is None."""
    return now is not None and (before is None or now > before)


def _without_progress(failure: Event, past: Sequence[Event]) -> list[Event]:
    """Return `failure` and the earlier failures since the run last got further, newest first; earlier preemptions are
    left out.

    The run got further if it had a newer checkpoint. Ranks that continue in place got further with any new step, and
    ranks that report neither steps nor checkpoints if their generation ran for ten minutes.
    """
    row, reports = [failure], failure.step is not None or failure.checkpoint is not None
    if (not reports and failure.ran_s >= STEADY_S) or (failure.in_place and failure.steps):
        return row  # ranks that continue in place keep the steps of their generation
    for event in reversed(past):
        if event.cause is Cause.PREEMPTED:
            continue
        if _further(failure, event) or (not reports and event.ran_s >= STEADY_S):
            break
        row.append(event)
    return row


def _preemptions(failure: Event, past: Sequence[Event]) -> int:
    """Return the number of preemptions since the run last made progress, `failure` included."""
    since = list[Event]()
    for event in reversed(past):
        if _got_on(failure, event):
            break
        since.append(event)
    return 1 + sum(event.cause is Cause.PREEMPTED for event in since)


def _stuck(row: Sequence[Event], limit: int | None) -> bool:
    """Return whether more failures than `limit` are in `row`, the failures without progress between them; with None
    there is no limit.

    Preemptions and full disks have budgets of their own, so the answer is False after one of these.
    """
    if row[0].cause in (Cause.PREEMPTED, Cause.DISK) or limit is None:
        return False
    return sum(event.cause is not Cause.DISK for event in row) > limit


def _no_progress(row: Sequence[Event]) -> str:
    """Return why the run ends after the failures in `row`, which had no progress between them.

    The text has advice if the run's time limit is too short for a checkpoint.
    """
    reported = row[0].step is not None or row[0].checkpoint is not None
    lacking = "newer checkpoint" if reported else f"report and no {STEADY_S:g} s of running"
    own = [event.cause for event in row if event.cause is not Cause.DISK]
    text = f"no {lacking} over {len(own) - 1} restarts in a row"
    if any(cause is not Cause.TIME_LIMIT for cause in own):
        return text
    ran_s = max(event.ran_s for event in row)
    done = max((event.step or 0) - (event.checkpoint or 0) for event in row)
    if done < 1:
        return f"{text}: the time limit is too short: {ran_s:g} s of running brought no step; raise resources.time"
    room = f"ranks ran for {ran_s:g} s and came {done} steps beyond the last one"
    cure = f"save more often, as with `checkpoint.every: {max(1, done // 2)} steps`, or raise resources.time"
    return f"{text}: the time limit is too short for a checkpoint: {room}; {cure}"


def _delay_s(budget: Budget, in_a_row: int) -> float:
    """Return the delay in seconds before the next restart, by `in_a_row`, the number of failures without progress
    between them: 0 for the first, the budget's `backoff_s` for the second, then twice as long with each, up to
    `backoff_max_s`.
    """
    if in_a_row <= 1:
        return 0.0
    return float(min(budget.backoff_max_s, budget.backoff_s * 2 ** min(in_a_row - 2, 60)))
