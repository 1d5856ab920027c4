"""Test a conductor's next action for every state of a trial and its run."""

from dataclasses import replace

import pytest

from launcher.apps.sweeps.decide import (
    MOST_REVIVALS,
    Aim,
    CancelTrial,
    EndSweep,
    NextTrial,
    PromoteTrial,
    ReviveTrial,
    Rung,
    StartTrial,
    TellTrial,
    TrialRun,
    TrialView,
    next_actions,
)
from launcher.states import State

AIM = Aim(trials=3, parallel=1, failures=2, metric="acc")
STOPPING = Aim(trials=3, parallel=1, failures=2, metric="acc", stopping=True)
REVIVING = Aim(trials=3, parallel=1, failures=2, metric="acc", reviving=True)
LIVE = [State.QUEUED, State.STARTING, State.RUNNING, State.REGROUPING]


def trial(state, value=None, *, pruning=False, message="", revivals=0):
    return TrialView(0, True, pruning=pruning, run=TrialRun(state, value, message, revivals=revivals))


def over(count, failed=0):
    return [TrialView(number, False, failed=number < failed) for number in range(count)]


def failures(*reasons):
    return [TrialView(number, False, failed=True, why=why) for number, why in enumerate(reasons)]


def test_a_sweep_whose_trials_have_all_failed_has_failed_and_says_why_most_of_them_did():
    aim = Aim(trials=3, parallel=1, failures=5, metric="acc")
    [end] = next_actions(failures("KeyError: 'x'", "no acc", "no acc"), aim)
    why = "all 3 trials are done: none has come to a value; 2 of 3: no acc"
    assert end == EndSweep("failed", why)


def test_three_equal_failures_at_the_start_are_enough():
    aim = Aim(trials=20, parallel=1, failures=5, metric="acc")
    alike = failures("ValueError: 0.1 is too much", "ValueError: 1e-3 is too much", "ValueError: 7 is too much")
    why = "the first 3 trials have failed alike: none has come to a value; of each: ValueError: 0.1 is too much"
    assert next_actions(alike, aim) == [EndSweep("failed", why)]
    assert next_actions(alike[:2], aim) == [NextTrial()]
    assert next_actions([*alike[:2], *failures("KeyError: 'x'")], aim) == [NextTrial()]
    assert next_actions([*alike, TrialView(3, False)], aim) == [NextTrial()], "one has come to something"
    assert next_actions(alike, replace(aim, failures=None)) == [NextTrial()], "failures: unlimited"


def test_what_a_trial_has_measured_is_named_where_it_is_not_the_metric():
    run = TrialRun(State.SUCCEEDED, reported=("loss", "lr"))
    told = TellTrial(0, why="it has never reported acc; it has reported loss, lr")
    assert next_actions([TrialView(0, True, run=run)], AIM) == [told]


def test_a_new_one_as_long_as_there_is_room():
    assert next_actions([], AIM) == [NextTrial()]
    assert next_actions([TrialView(0, True)], AIM) == [StartTrial(0)]
    two = Aim(trials=3, parallel=2, failures=None, metric="acc")
    assert next_actions([TrialView(0, True)], two) == [StartTrial(0), NextTrial()]
    assert next_actions([*over(2), TrialView(2, True)], two) == [StartTrial(2)]


@pytest.mark.parametrize("state", LIVE)
def test_one_that_goes_on(state):
    assert next_actions([trial(state)], AIM) == []
    assert next_actions([trial(state, pruning=True)], AIM) == [CancelTrial(0)]
    assert next_actions([trial(state)], STOPPING) == [CancelTrial(0)]


@pytest.mark.parametrize(
    ("view", "told"),
    [
        (trial(State.SUCCEEDED, 0.5), TellTrial(0, 0.5)),
        (trial(State.SUCCEEDED), TellTrial(0, why="it has never reported acc, nor anything else")),
        (trial(State.SUCCEEDED, float("nan")), TellTrial(0, why="acc is nan")),
        (trial(State.FAILED, 0.5, message="KeyError: 'lr'"), TellTrial(0, why="KeyError: 'lr'")),
        (trial(State.CANCELLED, 0.5), TellTrial(0, why="its run was cancelled")),
        (trial(State.LOST, revivals=MOST_REVIVALS), TellTrial(0, why="its run was lost 6 times")),
        *((trial(state, 0.5, pruning=True), TellTrial(0, pruned=True)) for state in (State.SUCCEEDED, State.CANCELLED)),
    ],
)
def test_one_that_is_over(view, told):
    assert next_actions([view], AIM) == [told]


def test_one_that_cannot_be_asked_is_waited_for():
    for aim in (AIM, STOPPING, REVIVING):
        assert next_actions([trial(State.UNKNOWN)], aim) == []


def test_a_lost_run_goes_on_and_so_does_one_that_was_stopped():
    assert next_actions([trial(State.LOST)], AIM) == [ReviveTrial(0)]
    assert next_actions([trial(State.CANCELLED)], REVIVING) == [ReviveTrial(0)]


def test_stopped_once_no_run_is_left():
    assert next_actions([trial(State.RUNNING), TrialView(1, True)], STOPPING) == [CancelTrial(0)]
    for view in (trial(State.CANCELLED), trial(State.LOST), TrialView(0, True)):
        assert next_actions([view], STOPPING) == [EndSweep("stopped", "stopped: launch sweep resume goes on")]
    assert next_actions([trial(State.SUCCEEDED, 1.0)], STOPPING) == [TellTrial(0, 1.0)]


def test_the_end():
    assert next_actions(over(3), AIM) == [EndSweep("succeeded", "all 3 trials are done")]
    assert next_actions(over(3, failed=2), AIM) == [EndSweep("failed", "2 trials have failed")]
    late = Aim(trials=3, parallel=1, failures=2, metric="acc", in_time=False)
    assert next_actions(over(1), late) == [EndSweep("succeeded", "its time is over")]
    assert next_actions([*over(1), TrialView(1, True, run=TrialRun(State.RUNNING))], late) == []


HALVING = Aim(trials=3, parallel=1, failures=2, metric="acc", factor=2)
LOW, HIGH = Rung(0, 1, 2), Rung(0, 1, 4)  # of two one goes on, of four two


def paused(rung, number=0, attempt=1):
    run = TrialRun(State.CANCELLED, attempt=attempt)
    return TrialView(number, True, pruning=True, rung=rung, goes_on_after=attempt - 1, run=run)


def test_one_that_was_stopped_at_a_rung_takes_nobodys_place():
    assert next_actions([paused(LOW)], HALVING) == [NextTrial()]
    assert next_actions([paused(LOW), TrialView(1, True)], HALVING) == [StartTrial(1)]
    assert next_actions([paused(None)], HALVING) == [TellTrial(0, pruned=True)], "it has never come to one"


def test_one_that_is_among_the_best_by_now_goes_on_before_another_begins():
    further = paused(Rung(2, 0, 1), 1, attempt=4)
    assert next_actions([paused(HIGH), paused(LOW, 1)], HALVING) == [PromoteTrial(0, 1)]
    assert next_actions([paused(HIGH), further], HALVING) == [PromoteTrial(1, 4)], "the furthest first"
    assert next_actions([*over(2), paused(HIGH, 2)], HALVING) == [PromoteTrial(2, 1)], "no new one is to come"
    assert next_actions([paused(HIGH), TrialView(1, True, run=TrialRun(State.RUNNING))], HALVING) == []


def test_one_that_was_told_to_go_on_does_so_once():
    def judged_trial(state, attempt):
        """Return a trial of the top rung whose run has this state and attempt."""
        return TrialView(0, True, rung=HIGH, goes_on_after=1, run=TrialRun(state, 0.5, attempt=attempt))

    for state in (State.CANCELLED, State.SUCCEEDED, State.FAILED, State.LOST):
        assert next_actions([judged_trial(state, 1)], HALVING) == [ReviveTrial(0)]
    assert next_actions([judged_trial(State.RUNNING, 2)], HALVING) == []
    assert next_actions([judged_trial(State.SUCCEEDED, 2)], HALVING) == [TellTrial(0, 0.5)]
    assert next_actions([judged_trial(State.CANCELLED, 2)], HALVING) == [TellTrial(0, why="its run was cancelled")]
    assert next_actions([judged_trial(State.CANCELLED, 1)], STOPPING) == [
        EndSweep("stopped", "stopped: launch sweep resume goes on")
    ]


def test_at_the_end_those_that_were_not_good_enough_are_pruned():
    assert next_actions([*over(1), paused(LOW, 1), paused(LOW, 2)], HALVING) == [
        TellTrial(1, pruned=True),
        TellTrial(2, pruned=True),
    ]
    late = Aim(trials=9, parallel=1, failures=2, metric="acc", factor=2, in_time=False)
    assert next_actions([paused(HIGH)], late) == [TellTrial(0, pruned=True)]
    stopping = Aim(trials=3, parallel=1, failures=2, metric="acc", factor=2, stopping=True)
    assert next_actions([paused(HIGH)], stopping) == [EndSweep("stopped", "stopped: launch sweep resume goes on")]
    reviving = Aim(trials=1, parallel=1, failures=2, metric="acc", factor=2, reviving=True)
    assert next_actions([paused(LOW), TrialView(1, True, run=TrialRun(State.RUNNING))], reviving) == []
