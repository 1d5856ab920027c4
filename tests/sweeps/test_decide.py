"""What a conductor does next, for every state that a trial and its run can be in."""

import pytest

from launcher.sweeps.decide import (
    MOST_REVIVALS,
    Aim,
    CancelTrial,
    EndSweep,
    NextTrial,
    ReviveTrial,
    StartTrial,
    TellTrial,
    TrialRun,
    TrialView,
    next_actions,
)
from launcher.words import State

AIM = Aim(trials=3, parallel=1, failures=2, metric="acc")
STOPPING = Aim(trials=3, parallel=1, failures=2, metric="acc", stopping=True)
REVIVING = Aim(trials=3, parallel=1, failures=2, metric="acc", reviving=True)
LIVE = [State.QUEUED, State.STARTING, State.RUNNING, State.REGROUPING]


def trial(state, value=None, *, pruning=False, message="", revivals=0):
    return TrialView(0, True, pruning=pruning, run=TrialRun(state, value, message, revivals))


def over(count, failed=0):
    return [TrialView(number, False, failed=number < failed) for number in range(count)]


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
        (trial(State.SUCCEEDED), TellTrial(0, why="it has never reported acc")),
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
    assert next_actions(over(2, failed=2), AIM) == [EndSweep("failed", "2 trials have failed")]
    late = Aim(trials=3, parallel=1, failures=2, metric="acc", in_time=False)
    assert next_actions(over(1), late) == [EndSweep("succeeded", "its time is over")]
    assert next_actions([*over(1), TrialView(1, True, run=TrialRun(State.RUNNING))], late) == []
