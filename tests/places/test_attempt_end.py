"""Test how a run continues after an end record that the coordinator did not write."""

import msgspec
import pytest
from run_folder import plan_of

from launcher.coordinator.server import time_used
from launcher.run.attempts import new_attempt
from launcher.run.durable import append_line, read_lines, read_record, write_record
from launcher.run.layout import RunDir
from launcher.run.records import Event, RunState
from launcher.states import Cause, State
from launcher.supervisor.attempt_end import ask_to_stop, first_state, is_cancelled, write_failure


@pytest.mark.parametrize(("reason", "used_s"), [("resume", 0.0), ("requeue", 50.0)])
@pytest.mark.parametrize("told", [True, False])
def test_a_resume_begins_the_time_anew_even_where_its_first_attempt_dies_at_once(tmp_path, reason, used_s, told):
    run, plan = RunDir(tmp_path), plan_of(tmp_path)
    new_attempt(run, "local", "submit", None)
    write_record(run.state, msgspec.structs.replace(first_state(plan, 1), used_s=50.0))
    second, _ = new_attempt(run, "local", reason, None)
    assert time_used(run, second) == used_s
    if told:
        write_failure(run, second, plan, Cause.NODE_LOST, "its agent is gone")
    third, _ = new_attempt(run, "local", "requeue", Cause.NODE_LOST)
    assert time_used(run, third) == used_s


def test_a_failure_that_its_supervisor_tells_of_says_how_long_the_generation_had_run(tmp_path):
    """Else no progress would ever refill the budget of a run whose coordinators die."""
    run, plan = RunDir(tmp_path), plan_of(tmp_path)
    first, _ = new_attempt(run, "local", "submit", None)
    for at in (100.0, 200.0):
        append_line(run.events, Event(at, 1, "generation_opened", "it begins"))
    write_record(run.state, msgspec.structs.replace(first_state(plan, 1), updated_at=7400.0))
    write_failure(run, first, plan, Cause.NODE_LOST, "its agent is gone")
    second, _ = new_attempt(run, "local", "requeue", Cause.NODE_LOST)
    write_failure(run, second, plan, Cause.NODE_LOST, "its agent is gone")
    failures = [event for event in read_lines(run.events, Event) if event.kind == "failure"]
    assert [event.ran_s for event in failures] == [7200.0, 0.0]


def test_a_wish_to_end_is_written_where_its_folder_is_gone_and_raises_nowhere(tmp_path):
    """Who asks, and a batch process that was told to leave, go on to signals: an error there left agents behind."""
    run = RunDir(tmp_path)
    ask_to_stop(run.attempt(1), "cancel")
    assert is_cancelled(run.attempt(1))
    run.attempt(2).path.touch()
    ask_to_stop(run.attempt(2), "preempt")
    run.attempt(3).stop.mkdir(parents=True)
    ask_to_stop(run.attempt(3), "cancel")
    assert not is_cancelled(run.attempt(3))


def test_a_failure_is_told_where_the_state_before_it_is_damaged(tmp_path):
    """The supervisor ended by that, and the run was lost."""
    run, plan = RunDir(tmp_path), plan_of(tmp_path)
    attempt, _ = new_attempt(run, "local", "submit", None)
    run.state.write_bytes(b"\0" * 100)
    assert write_failure(run, attempt, plan, Cause.NODE_LOST, "its agent is gone").state is State.QUEUED
    assert read_record(run.state, RunState).state is State.QUEUED
