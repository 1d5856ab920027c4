"""Cause and history → what happens next."""

from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import given
from msgspec.structs import replace

from launcher.coordinator.policy import budget_of, decide, restarts_by_cause
from launcher.run.records import EXPLAINED, Event
from launcher.spec.model import Budget, Recovery
from launcher.states import Action, Cause, ErrorKind

RULES = Recovery()
BUDGETED = [cause for cause in Cause if cause not in (Cause.NO_PROGRESS, Cause.NO_CHECKPOINT, Cause.CANCELLED)]


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


@pytest.mark.parametrize("number", [4, 6, 8, 11])
@pytest.mark.parametrize(
    ("now", "before"),
    [
        ({"step": 17, "checkpoint": 10}, {"step": 17, "checkpoint": 10}),
        ({"step": 17}, {"step": 18}),  # another rank was one ahead
        ({"where": "net.py:3 in f"}, {"where": "net.py:3 in f", "ran_s": 3000.0}),
        ({}, {}),
    ],
)
def test_the_same_crash_at_the_same_step_ends_the_run(number: int, now: Any, before: Any) -> None:
    past = [failure(signal=number, **before), failure(Cause.PREEMPTED, **before), failure(signal=9, **before)]
    found = decide(failure(signal=number, **now), past, RULES, can_regroup=True)
    assert (found.action, found.cause) == (Action.END, Cause.KILLED)
    assert found.reason == "the same crash at the same step again, without progress"


@pytest.mark.parametrize(
    ("now", "before"),
    [
        ({"signal": 9, "step": 17}, {"signal": 9, "step": 17}),
        ({"signal": 9, "step": 17}, {"signal": 11, "step": 17}),
        ({"signal": 11, "step": 17}, {"signal": 6, "step": 17}),
        ({"signal": 11, "step": 17}, {"signal": 11, "step": 12}),
        ({"signal": 11, "step": 17, "checkpoint": 16}, {"signal": 11, "step": 16, "checkpoint": 12}),
        ({"signal": 11, "where": "net.py:3 in f"}, {"signal": 11, "where": "net.py:9 in f"}),
        ({"signal": 11, "ran_s": 3000.0}, {"signal": 11}),
        ({"step": 17}, {"step": 17}),  # as events of an older version have it
    ],
)
def test_another_signal_or_another_step_does_not(now: Any, before: Any) -> None:
    assert action(failure(**now), failure(**before)) is Action.REGROUP


def test_what_the_cluster_explains_later_counts_as_that() -> None:
    rules = replace(RULES, node_lost=Budget(1))
    past = [failure(Cause.KILLED), failure(Cause.NODE_LOST), event("requeue")]
    assert action(failure(Cause.NODE_LOST, attempt=2), *past, rules=rules) is Action.END
    told = [*past, replace(event(EXPLAINED), cause=Cause.PREEMPTED)]
    assert action(failure(Cause.NODE_LOST, attempt=2), *told, rules=rules) is Action.REGROUP
    assert restarts_by_cause(told, 2) == {"killed": 1, "preempted": 1}


def test_a_budget_without_a_limit() -> None:
    assert action(failure(Cause.PREEMPTED), *[failure(Cause.PREEMPTED)] * 500) is Action.REGROUP


def test_what_only_ends_a_run() -> None:
    assert action(failure(Cause.CANCELLED)) is Action.END
    assert action(failure(Cause.NO_PROGRESS)) is Action.END
    assert action(failure(Cause.NO_CHECKPOINT)) is Action.END
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


def test_steps_without_checkpoints_are_no_progress() -> None:
    assert action(failure(step=90), *[failure(step=step) for step in (50, 60, 70, 80, 85)]) is Action.END
    assert action(failure(step=90), *[failure(step=9)] * 19, rules=replace(RULES, no_progress=None)) is Action.REGROUP


@pytest.mark.parametrize("cause", [Cause.COMMUNICATION, Cause.KILLED, Cause.USER_ERROR])
def test_a_script_that_never_reports_gets_nowhere_by_short_lives(cause: Cause) -> None:
    short, steady = [failure(cause, where=f"a.py:{line}", ran_s=78.0) for line in range(6)], failure(cause, ran_s=600.0)
    rules = replace(RULES, user_error=Budget(20))
    found = decide(short[5], short[:5], rules, can_regroup=True)
    assert (found.action, found.cause) == (Action.END, Cause.NO_PROGRESS)
    assert found.reason == "no report and no 600 s of running over 5 restarts in a row"
    assert action(short[4], *short[:4], rules=rules) is Action.REGROUP
    assert action(short[5], *short[:2], steady, *short[3:5], rules=rules) is Action.REGROUP
    assert action(replace(short[5], ran_s=600.0), *short[:5], rules=rules) is Action.REGROUP


def failures_that_bring_checkpoints(number: int, cause: Cause, ran_s: float) -> list[Event]:
    return [failure(cause, checkpoint=count, step=count, ran_s=ran_s) for count in range(1, number + 1)]


@pytest.mark.parametrize("cause", [cause for cause in BUDGETED if cause is not Cause.TIME_LIMIT])
def test_progress_refills_a_budget(cause: Cause) -> None:
    rules = replace(RULES, **{cause.value: Budget(3, refill_s=3600.0)})  # type: ignore[arg-type]
    daily = failures_that_bring_checkpoints(100, cause, 86_400.0)
    assert decide(daily[-1], daily[:-1], rules, can_regroup=True).reason == f"restart 1 of 3 for {cause}"
    half_hourly = failures_that_bring_checkpoints(100, cause, 1800.0)
    assert decide(half_hourly[-1], half_hourly[:-1], rules, can_regroup=True).reason == f"restart 2 of 3 for {cause}"
    quick = failures_that_bring_checkpoints(4, cause, 60.0)
    assert action(quick[-1], *quick[:-1], rules=rules) is Action.END
    never = replace(RULES, **{cause.value: Budget(3, refill_s=None)})  # type: ignore[arg-type]
    assert action(daily[-1], *daily[:-1], rules=never) is Action.END


def test_time_without_progress_refills_nothing() -> None:
    rules = replace(RULES, killed=Budget(3), no_progress=None)
    stuck = [failure(checkpoint=7, step=8, ran_s=86_400.0)] * 4
    assert action(stuck[-1], *stuck[:-1], rules=rules) is Action.END
    between = [*stuck[:3], failure(Cause.HANG, checkpoint=8, step=9, ran_s=3600.0)]
    assert action(failure(checkpoint=8, step=9), *between, rules=rules) is Action.REGROUP


def test_of_a_script_that_never_reports_a_long_life_refills_budgets() -> None:
    lives = [failure(ran_s=1900.0)] * 100
    assert decide(lives[-1], lives[:-1], RULES, can_regroup=True).reason == "restart 2 of 20 for killed"


def test_a_time_limit_that_leaves_no_room_for_a_checkpoint_is_told_with_what_would_do() -> None:
    rules = replace(RULES, time_limit=Budget(None), no_progress=2)
    limit = Cause.TIME_LIMIT
    row = [failure(limit, step=step, checkpoint=100, ran_s=55.0) for step in (130, 140, 135)]
    found = decide(row[-1], row[:-1], rules, can_regroup=False)
    assert (found.action, found.cause) == (Action.END, Cause.NO_PROGRESS)
    assert found.reason == (
        "no newer checkpoint over 2 restarts in a row: the time limit is too short for a checkpoint: ranks ran for 55 "
        "s and came 40 steps beyond the last one; save more often, as with `checkpoint.every: 20 steps`, or raise "
        "resources.time"
    )
    silent = [failure(limit, ran_s=20.0)] * 3
    assert (
        "the time limit is too short: 20 s of running brought no step"
        in decide(silent[-1], silent[:-1], rules, can_regroup=False).reason
    )
    mixed = [row[0], failure(Cause.KILLED, step=140, checkpoint=100), row[2]]
    reason = decide(mixed[-1], mixed[:-1], rules, can_regroup=False).reason
    assert reason == "no newer checkpoint over 2 restarts in a row"


def test_preemptions_neither_count_as_no_progress_nor_end_for_it() -> None:
    rules, preempted = replace(RULES, no_progress=2), failure(Cause.PREEMPTED, checkpoint=5)
    assert action(failure(checkpoint=5), *[preempted] * 10, rules=rules) is Action.REGROUP
    assert action(preempted, *[failure(checkpoint=5)] * 10, rules=rules) is Action.REGROUP


def test_full_disks_neither_count_as_no_progress_nor_end_for_it_and_wait_longer() -> None:
    full, stuck = failure(Cause.DISK, checkpoint=5), failure(checkpoint=5)
    assert action(full, *[stuck] * 5, *[full] * 10) is Action.REGROUP
    assert action(stuck, *[full] * 10, *[stuck] * 4) is Action.REGROUP
    assert action(stuck, *[full] * 10, *[stuck] * 5) is Action.END
    assert [delay(full, *[full] * past) for past in range(9)] == [0, 5, 10, 20, 40, 80, 160, 300, 300]


def test_delays_double_up_to_their_bound_and_progress_forgets_them() -> None:
    rules = replace(RULES, killed=Budget(None, 2.0, 9.0), no_progress=None)
    stuck = failure(checkpoint=1)
    assert [delay(stuck, *[stuck] * past, rules=rules) for past in range(6)] == [0, 2, 4, 8, 9, 9]
    assert delay(failure(checkpoint=2), *[stuck] * 5, rules=rules) == 0
    assert delay(stuck, *[stuck] * 5000, rules=rules) == 9
    assert delay(failure(Cause.PREEMPTED), *[stuck] * 5, rules=rules) == 0


def test_preemptions_without_progress_are_followed_by_longer_and_longer_waits() -> None:
    preempted = failure(Cause.PREEMPTED, checkpoint=1)
    assert [delay(preempted, *[preempted] * past) for past in range(8)] == [0, 1, 2, 4, 8, 16, 32, 60]
    assert delay(failure(Cause.PREEMPTED, checkpoint=2), *[preempted] * 5) == 0


EXPLICIT = replace(RULES, user_error=Budget(3, explicit=True), killed=Budget(3, explicit=True))


@pytest.mark.parametrize(
    "now",
    [
        {"where": "a.py:1", "error_kind": ErrorKind.EXCEPTION},
        {"code": 3, "error_kind": ErrorKind.USAGE},
        {"cause": Cause.KILLED, "signal": 11, "step": 7},
    ],
)
def test_a_number_of_restarts_that_somebody_wrote_is_used_up(now: dict[str, Any]) -> None:
    one = failure(**{"cause": USER, **now})
    assert [action(one, *[one] * past, rules=EXPLICIT) for past in range(4)] == [Action.REGROUP] * 3 + [Action.END]
    assert decide(one, [one] * 3, EXPLICIT, can_regroup=True).reason.startswith("the budget of 3 restarts")


@pytest.mark.parametrize(
    ("kind", "goes_on"),
    [
        (ErrorKind.EXCEPTION, False), (ErrorKind.MODULE, False), (ErrorKind.USAGE, False),
        (ErrorKind.PASSING, True), (ErrorKind.OTHER, True), (None, True),
    ],
)  # fmt: skip
def test_an_error_before_any_progress_is_tried_again_only_where_that_may_help(
    kind: ErrorKind | None, *, goes_on: bool
) -> None:
    error = failure(USER, where="a.py:1", error_kind=kind)
    assert (action(error) is Action.REGROUP) == goes_on
    assert (action(error, failure(Cause.KILLED)) is Action.REGROUP) == goes_on
    for further in ({"steps_in_all": 3, "step": 3}, {"ran_s": 600.0}):
        assert action(replace(error, **further)) is Action.REGROUP
        assert action(error, failure(Cause.KILLED, **further)) is Action.REGROUP
    resumed = [failure(Cause.KILLED, steps_in_all=3, step=3, checkpoint=2), event("resumed", 2)]
    assert (action(replace(error, step=3, checkpoint=2), *resumed) is Action.REGROUP) == goes_on


@pytest.mark.parametrize(
    ("now", "before", "ends"),
    [
        ({"code": 3}, {"code": 3}, True),
        ({"code": 7}, {"code": 3}, False),
        ({"code": 3, "said": "no shard 4"}, {"code": 3, "said": "no shard 1"}, False),
        ({"code": 3, "said": "no shard 4"}, {"code": 3, "said": "no shard 4"}, True),
    ],
)
def test_exits_without_an_exception_are_the_same_by_code_and_last_line(
    now: dict[str, Any], before: dict[str, Any], *, ends: bool
) -> None:
    last, first = (failure(USER, error_kind=ErrorKind.OTHER, **how) for how in (now, before))
    assert (action(last, first) is Action.END) == ends


def test_steps_since_the_last_start_are_progress_of_ranks_that_go_on_in_place() -> None:
    stuck = [failure(step=90, checkpoint=50)] * 5
    assert action(failure(step=80, checkpoint=50, steps=30), *stuck) is Action.END
    found = decide(failure(step=80, checkpoint=50, steps=30, in_place=True), stuck, RULES, can_regroup=True)
    assert (found.action, found.delay_s) == (Action.REGROUP, 0.0)


def test_restarts_are_failures_after_which_the_run_went_on() -> None:
    history = [
        failure(), event("regroup"), event("generation_opened"),
        failure(Cause.HANG), event("requeue"),
        failure(Cause.NODE_LOST, 2), event("ended", 2),  # its coordinator died: the supervisor spoke for it
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


def test_a_file_that_was_not_frozen_is_not_missed_a_second_time():
    missed = failure(Cause.USER_ERROR, left_out="data/words.txt", where="train.py:3")
    decision = decide(missed, [], RULES, can_regroup=True)
    assert (decision.action, decision.cause) == (Action.END, Cause.USER_ERROR)
    assert "data/words.txt was not frozen" in decision.reason
    assert action(failure(Cause.USER_ERROR, where="train.py:3")) is Action.REGROUP
