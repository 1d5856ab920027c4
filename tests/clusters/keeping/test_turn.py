"""What other runs mean to one that waits for them: pure questions."""

import pytest

from launcher.clusters.keeping.turn import OtherRun, has_come_to_it, never_will, waits_for
from launcher.plan.model import AwaitedRun
from launcher.words import State

GONE = OtherRun(None)


def wish(until="succeeded", step=0):
    return AwaitedRun("prep-7k3f", "/runs/prep-7k3f", until, step)


def other(state, step=None):
    return OtherRun(state, str(state), step)


@pytest.mark.parametrize("state", list(State))
def test_who_is_to_succeed_has_or_may_yet_or_never_will(state):
    seen = other(state)
    assert has_come_to_it(wish(), seen) == (state is State.SUCCEEDED)
    failed = state in (State.FAILED, State.CANCELLED, State.LOST)
    assert never_will(wish(), seen) == (f"prep-7k3f, which it was to follow, is {state}" if failed else "")


@pytest.mark.parametrize("state", list(State))
def test_any_end_is_an_end(state):
    assert has_come_to_it(wish("ended"), other(state)) == state.ended
    assert never_will(wish("ended"), other(state)) == ""


@pytest.mark.parametrize("state", list(State))
def test_steps_are_made_by_whoever_has_made_them_and_by_who_has_succeeded_with_less(state):
    assert has_come_to_it(wish("step", 100), other(state, 100))
    assert has_come_to_it(wish("step", 100), other(state, 99)) == (state is State.SUCCEEDED)
    never = state.ended and state is not State.SUCCEEDED
    assert bool(never_will(wish("step", 100), other(state, 99))) == never


def test_one_that_was_taken_away_has_ended_and_comes_to_nothing_else():
    assert has_come_to_it(wish("ended"), GONE)
    assert never_will(wish(), GONE) == "prep-7k3f, which it was to follow, was taken away"
    assert never_will(wish("step", 1), GONE)


def test_what_is_waited_for_is_said():
    running = other(State.RUNNING, 7)
    assert waits_for(wish(), running) == "waits for prep-7k3f to succeed (it is running)"
    assert waits_for(wish("ended"), other(State.UNKNOWN)) == "waits for prep-7k3f to end (it is unknown)"
    assert waits_for(wish("step", 9), running) == "waits for prep-7k3f to come to step 9 (at step 7)"
