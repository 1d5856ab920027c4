"""Cause and history → what happens next."""

from dataclasses import replace
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import given

from launcher.recovery.policy import budget_of, decide, restarts_by_cause
from launcher.rundir.records import Event
from launcher.spec.model import Budget, Recovery
from launcher.words import Action, Cause

RULES = Recovery()
BUDGETED = [cause for cause in Cause if cause not in (Cause.NO_PROGRESS, Cause.CANCELLED)]


def failure(cause: Cause = Cause.KILLED, attempt: int = 1, **known: Any) -> Event:
    return Event(0.0, attempt, "failure", "it failed", cause=cause, **known)


def event(kind: str, attempt: int = 1) -> Event:
    return Event(0.0, attempt, kind, kind)


def action(now: Event, *before: Event, rules: Recovery = RULES, can_regroup: bool = True) -> Action:
    return decide(now, before, rules, can_regroup=can_regroup).action


def delay(now: Event, *before: Event, rules: Recovery = RULES) -> float:
    return decide(now, before, rules, can_regroup=True).delay_s


def test_a_first_failure_regroups_at_once_or_asks_for_a_new_attempt() -> None:
    found = decide(failure(), (), RULES, can_regroup=True)
    assert (found.action, found.delay_s, found.cause, found.reason) == (
        Action.REGROUP, 0.0, Cause.KILLED, "restart 1 of 20 for killed",
    )  # fmt: skip
    assert action(failure(), can_regroup=False) is Action.REQUEUE


@pytest.mark.parametrize("cause", BUDGETED)
def test_each_cause_has_a_budget_of_its_own(cause: Cause) -> None:
    budgets: dict[str, Any] = {cause.value: Budget(2)}
    rules = replace(RULES, no_progress=None, **budgets)
    other = Cause.HANG if cause is not Cause.HANG else Cause.KILLED
    past = [failure(other), failure(cause, step=1), failure(other), failure(Cause.PREEMPTED)]
    if cause is Cause.PREEMPTED:
        past = past[:-1]
    assert action(failure(cause, step=2), *past, rules=rules) is Action.REGROUP
    found = decide(failure(cause, step=3), [*past, failure(cause, step=2)], rules, can_regroup=True)
    assert (found.action, found.cause) == (Action.END, cause)
    assert "2 restarts" in found.reason


def test_a_budget_without_a_limit() -> None:
    assert action(failure(Cause.PREEMPTED), *[failure(Cause.PREEMPTED)] * 500) is Action.REGROUP


def test_what_only_ends_a_run() -> None:
    assert action(failure(Cause.CANCELLED)) is Action.END
    assert action(failure(Cause.NO_PROGRESS)) is Action.END
    assert budget_of(RULES, Cause.CANCELLED) is None
    found = decide(failure(Cause.TIME_LIMIT), (), RULES, can_regroup=False)
    assert (found.action, found.cause) == (Action.END, Cause.TIME_LIMIT)


def test_a_person_who_resumes_fills_the_budgets_again() -> None:
    rules = replace(RULES, hang=Budget(1))
    assert action(failure(Cause.HANG), failure(Cause.HANG), rules=rules) is Action.END
    assert action(failure(Cause.HANG), failure(Cause.HANG), event("resumed", 2), rules=rules) is Action.REGROUP


USER = Cause.USER_ERROR


@pytest.mark.parametrize(
    ("now", "before", "ends"),
    [
        ({"where": "a.py:1"}, {"where": "a.py:1"}, True),
        ({"where": "a.py:1"}, {"where": "a.py:2"}, False),
        ({}, {}, True),
        ({"where": "a", "step": 7}, {"where": "a", "step": 7}, True),
        ({"where": "a", "step": 8}, {"where": "a", "step": 7}, False),
        ({"where": "a", "step": 1}, {"where": "a", "step": 0}, False),
        ({"where": "a", "step": 0}, {"where": "a", "step": 0}, True),
        ({"where": "a", "step": 3}, {"where": "a"}, False),
        ({"where": "a", "step": 9, "checkpoint": 5}, {"where": "a", "step": 7, "checkpoint": 5}, True),
        ({"where": "a", "step": 7, "checkpoint": 6}, {"where": "a", "step": 7, "checkpoint": 5}, False),
        ({"where": "a", "step": 7, "checkpoint": 5}, {"where": "a", "step": 7}, False),
    ],
)
def test_the_same_user_error_without_progress_ends_at_once(
    now: dict[str, Any], before: dict[str, Any], ends: bool
) -> None:
    past = [failure(USER, **before), failure(Cause.KILLED)]
    assert (action(failure(USER, **now), *past) is Action.END) == ends


def test_no_progress_over_n_restarts_in_a_row() -> None:
    rules = replace(RULES, no_progress=3)
    stuck = failure(checkpoint=5)
    assert action(stuck, stuck, stuck, rules=rules) is Action.REGROUP
    found = decide(stuck, [stuck] * 3, rules, can_regroup=True)
    assert (found.action, found.cause) == (Action.END, Cause.NO_PROGRESS)
    assert action(failure(checkpoint=6), stuck, stuck, stuck, rules=rules) is Action.REGROUP
    assert action(stuck, failure(checkpoint=4), stuck, stuck, rules=rules) is Action.REGROUP


def test_steps_without_checkpoints_are_no_progress_and_silence_is_not_judged() -> None:
    assert action(failure(step=90), *[failure(step=step) for step in (50, 60, 70, 80, 85)]) is Action.END
    assert action(failure(), *[failure()] * 19) is Action.REGROUP
    assert action(failure(step=90), *[failure(step=9)] * 19, rules=replace(RULES, no_progress=None)) is Action.REGROUP


def test_preemptions_neither_count_as_no_progress_nor_end_for_it() -> None:
    rules, preempted = replace(RULES, no_progress=2), failure(Cause.PREEMPTED, checkpoint=5)
    assert action(failure(checkpoint=5), *[preempted] * 10, rules=rules) is Action.REGROUP
    assert action(preempted, *[failure(checkpoint=5)] * 10, rules=rules) is Action.REGROUP


def test_delays_double_up_to_their_bound_and_progress_forgets_them() -> None:
    rules = replace(RULES, killed=Budget(None, 2.0, 9.0), no_progress=None)
    stuck = failure(checkpoint=1)
    assert [delay(stuck, *[stuck] * past, rules=rules) for past in range(6)] == [0, 2, 4, 8, 9, 9]
    assert delay(failure(checkpoint=2), *[stuck] * 5, rules=rules) == 0
    assert delay(stuck, *[stuck] * 5000, rules=rules) == 9
    assert delay(failure(Cause.PREEMPTED), *[stuck] * 5, rules=rules) == 0


def test_restarts_are_failures_after_which_the_run_went_on() -> None:
    history = [
        failure(), event("regroup"), event("generation_opened"),
        failure(Cause.HANG), event("requeue"),
        failure(Cause.NODE_LOST, 2), event("ended", 2),  # its coordinator died: the keeper spoke for it
        event("agent_joined", 3), failure(Cause.KILLED, 3), event("ended", 3),
    ]  # fmt: skip
    assert restarts_by_cause(history) == {"killed": 1, "hang": 1, "node_lost": 1}
    assert restarts_by_cause(history[:7]) == {"killed": 1, "hang": 1}
    assert restarts_by_cause(history[:7], attempt=3) == {"killed": 1, "hang": 1, "node_lost": 1}
    assert restarts_by_cause([*history, event("resumed", 4)], attempt=4) == {"killed": 1, "hang": 1, "node_lost": 1}


FAILURES = st.builds(
    failure,
    st.sampled_from(BUDGETED),
    where=st.sampled_from([None, "a.py:1", "b.py:2"]),
    step=st.none() | st.integers(0, 5),
    checkpoint=st.none() | st.integers(0, 3),
)
RULE_SETS = st.builds(
    Recovery,
    no_progress=st.none() | st.integers(1, 4),
    **{cause.value: st.builds(Budget, st.none() | st.integers(0, 3)) for cause in BUDGETED},
)


@given(st.lists(FAILURES, max_size=40), RULE_SETS, st.booleans())
def test_whatever_happens_no_budget_is_exceeded_and_delays_are_bounded(
    failures: list[Event], rules: Recovery, can_regroup: bool
) -> None:
    past: list[Event] = []
    for now in failures:
        found = decide(now, past, rules, can_regroup=can_regroup)
        assert found.reason
        if found.action is Action.END:
            break
        assert found.action is (Action.REGROUP if can_regroup else Action.REQUEUE)
        assert now.cause is not None
        budget = budget_of(rules, now.cause)
        assert budget is not None
        assert 0 <= found.delay_s <= budget.backoff_max_s
        past.append(now)
        assert budget.restarts is None or sum(one.cause is now.cause for one in past) <= budget.restarts


def test_a_run_that_never_reports_is_given_no_delay_after_a_long_generation() -> None:
    before = [failure(), failure(), failure()]
    assert delay(failure(ran_s=599.0), *before) == 4.0
    assert delay(failure(ran_s=600.0), *before) == 0.0
    assert delay(failure(ran_s=9999.0, step=5), *[failure(step=4)] * 3) == 4.0
