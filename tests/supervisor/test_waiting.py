"""Why a run waits, and how its wait ends."""

from dataclasses import dataclass, field

import msgspec
import pytest

from launcher.errors import LaunchError, Unreachable
from launcher.plan.model import AwaitedRun, Plan
from launcher.run.durable import create_record, readable
from launcher.run.identity import this_process
from launcher.run.records import AttemptEnd, RunState
from launcher.states import State
from launcher.supervisor.waiting import OtherRun, Turn, Waiter, is_fulfilled, waits_for, why_impossible
from tests.run_folder import RunFolder

GONE = OtherRun(None)


def wish(until="succeeded", step=0):
    return AwaitedRun("prep-7k3f", "/runs/prep-7k3f", until, step)


def other(state, step=None):
    return OtherRun(state, str(state), step)


@pytest.mark.parametrize("state", list(State))
def test_who_is_to_succeed_has_or_may_yet_or_never_will(state):
    seen = other(state)
    assert is_fulfilled(wish(), seen) == (state is State.SUCCEEDED)
    failed = state.ended and state is not State.SUCCEEDED
    assert why_impossible(wish(), seen) == (f"prep-7k3f, which it was to follow, is {state}" if failed else "")


@pytest.mark.parametrize("state", list(State))
def test_any_end_is_an_end(state):
    assert is_fulfilled(wish("ended"), other(state)) == state.ended
    assert why_impossible(wish("ended"), other(state)) == ""


@pytest.mark.parametrize("state", list(State))
def test_steps_are_made_by_whoever_has_made_them_and_by_who_has_succeeded_with_less(state):
    assert is_fulfilled(wish("step", 100), other(state, 100))
    assert is_fulfilled(wish("step", 100), other(state, 99)) == (state is State.SUCCEEDED)
    never = state.ended and state is not State.SUCCEEDED
    assert bool(why_impossible(wish("step", 100), other(state, 99))) == never


def test_one_that_was_taken_away_has_ended_and_comes_to_nothing_else():
    assert is_fulfilled(wish("ended"), GONE)
    assert why_impossible(wish(), GONE) == "prep-7k3f, which it was to follow, was taken away"
    assert why_impossible(wish("step", 1), GONE)


def test_what_is_waited_for_is_said():
    running = other(State.RUNNING, 7)
    assert waits_for(wish(), running) == "waits for prep-7k3f to succeed (it is running)"
    assert waits_for(wish("ended"), other(State.UNKNOWN)) == "waits for prep-7k3f to end (it is unknown)"
    assert waits_for(wish("step", 9), running) == "waits for prep-7k3f to come to step 9 (at step 7)"


@dataclass
class Looks:
    """A wake-up that never sleeps: after each look it does what comes next, and at the end asks for a stop."""

    events: list = field(default_factory=list)
    stop_asked: bool = False

    def sleep(self, _seconds):
        if self.events:
            self.events.pop(0)()
        else:
            self.stop_asked = True


@dataclass
class Others:
    """Other runs, as they are at each look."""

    states: list

    def look(self, _path):
        return self.states.pop(0) if len(self.states) > 1 else self.states[0]


@pytest.fixture
def made(tmp_path):
    return RunFolder(tmp_path / "vit-9x2d").plan().intent().state(State.STARTING)


def waiter(made, *, hold=False, awaited=(), states=(GONE,)):
    plan = msgspec.json.decode(made.run.plan.read_bytes(), type=Plan)
    queue = msgspec.structs.replace(plan.spec.queue, hold=hold)
    plan = msgspec.structs.replace(plan, spec=msgspec.structs.replace(plan.spec, queue=queue), awaited=tuple(awaited))
    return Waiter(made.run, made.run.attempt(1), plan, Others([*states]).look)


def state_and_message(made):
    """Return the state and the message in the run's `state.json`."""
    state = readable(made.run.state, RunState)
    return state.state, state.message


def ended(made):
    return readable(made.run.attempt(1).end, AttemptEnd)


def test_a_run_that_nothing_holds_back_starts_at_once_and_has_not_waited(made):
    one = waiter(made)
    assert one.wait(Looks(), every_s=0) is Turn.COME
    assert not one.waited and state_and_message(made)[0] is State.STARTING


def test_a_held_run_says_why_it_waits_until_it_is_released(made):
    heard = []
    one = waiter(made, hold=True)

    def release():
        heard.append(state_and_message(made))
        create_record(made.run.attempt(1).released, this_process())

    assert one.wait(Looks([release]), every_s=0) is Turn.COME
    assert heard == [(State.QUEUED, "held until `launch release vit-9x2d`")] and one.held_back


def test_what_its_place_lacks_is_said_once_nothing_else_holds_the_run_back(made):
    lacks = ["waits for 1 of 1 GPUs", ""]
    running, succeeded = other(State.RUNNING), other(State.SUCCEEDED)
    heard = []
    one = waiter(made, awaited=[wish()], states=[running, succeeded])
    looks = Looks([lambda: heard.append(state_and_message(made)[1])] * 2)
    assert one.wait(looks, every_s=0, place=lambda: lacks.pop(0)) is Turn.COME
    assert heard == ["waits for prep-7k3f to succeed (it is running)", "waits for 1 of 1 GPUs"]


def test_a_run_whose_turn_cannot_come_ends_cancelled(made):
    one = waiter(made, awaited=[wish()], states=[other(State.FAILED)])
    assert one.wait(Looks(), every_s=0) == ended(made)
    assert ended(made).state is State.CANCELLED
    assert ended(made).message == "prep-7k3f, which it was to follow, is failed"


def test_a_place_that_does_not_answer_is_waited_for_and_one_that_refuses_ends_the_run(made):
    def unreachable():
        raise Unreachable("login1 does not answer")

    def refuses():
        raise LaunchError("vit-9x2d: its code cannot be read")

    assert waiter(made).wait(Looks(), every_s=0, place=unreachable) is Turn.STOPPED
    assert (
        state_and_message(made) == (State.QUEUED, "waits for its cluster: login1 does not answer")
        and ended(made) is None
    )
    assert waiter(made).wait(Looks(), every_s=0, place=refuses) == ended(made)
    assert (ended(made).state, ended(made).message) == (State.FAILED, "vit-9x2d: its code cannot be read")


def test_a_wait_can_be_left_only_after_a_look_in_vain(made):
    assert waiter(made).wait(Looks(), every_s=0, leaves=lambda: True) is Turn.COME
    assert waiter(made, hold=True).wait(Looks(), every_s=0, leaves=lambda: True) is Turn.STOPPED
