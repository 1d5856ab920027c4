"""wait, cancel, resume on folders; with real processes they are tested in tests/local."""

import pytest
from run_folder import dead_process

from launcher.words import Cause, State


def test_wait_gives_the_runs_exit_code_and_its_final_line(desk):
    desk.run().succeeded()
    assert desk.launch("wait", "last").stdout == "job-abcd succeeded\n"
    desk.run("bad-bbbb").failed(submitted_at=9e9)
    done = desk.launch("wait", "last", check=10)
    assert done.stdout == "bad-bbbb failed (user_error)\n"
    assert done.stderr == "next: mend the code, then launch resume bad-bbbb --code\n"


def test_wait_shows_no_control_that_a_record_holds(desk):
    state = desk.run("bad-bbbb").failed().run.state
    state.write_text(state.read_text().replace('"run":"bad-bbbb"', '"run":"bad\\u001b[2J-bbbb"'))
    done = desk.launch("wait", "last", check=10)
    assert done.stdout == "bad-bbbb failed (user_error)\n"
    assert done.stderr == "next: mend the code, then launch resume bad-bbbb --code\n"


def test_wait_for_several_gives_the_exit_code_of_the_first_that_failed(desk):
    desk.run("good-aaaa").succeeded()
    desk.run("bad-bbbb").failed()
    desk.run("lost-cccc").plan().attempt(keeper=dead_process()).state()
    done = desk.launch("wait", "good", "bad", "lost", "good-aaaa", check=10)
    assert [line.split()[0] for line in done.stdout.splitlines()] == ["good-aaaa", "bad-bbbb", "lost-cccc"]
    assert desk.launch("wait", "good", "none", check=3).stdout == ""


def test_wait_of_a_lost_run(desk):
    desk.run().plan().attempt(keeper=dead_process()).state()
    assert desk.launch("wait", "last", check=21).stdout.startswith("job-abcd lost: ")


def test_wait_gives_up_after_its_time(desk):
    desk.run().running()
    done = desk.launch("wait", "last", "--timeout", "0.2", check=4)
    assert done.stdout == ""
    assert "still running after 0.2 s" in done.stderr


@pytest.mark.parametrize("state", [State.SUCCEEDED, State.CANCELLED])
def test_cancel_of_an_ended_run_says_so(desk, state):
    run = desk.run()
    run.plan().attempt(keeper=dead_process()).end(state, exit_code=0).state(state)
    assert "already ended" in desk.launch("cancel", "last").stdout
    assert not run.run.attempt(1).stop.exists()


def test_cancel_of_several_begins_with_none_where_one_is_unknown(desk):
    for name in ("one-aaaa", "two-bbbb"):
        desk.run(name).plan().attempt(keeper=dead_process()).end(State.SUCCEEDED, exit_code=0).state(State.SUCCEEDED)
    said = desk.launch("cancel", "one", "two", "one-aaaa").stdout
    assert [line.split()[0] for line in said.splitlines()] == ["one-aaaa", "two-bbbb"]
    assert desk.launch("cancel", "one", "none", check=3).stdout == ""


def test_resume_of_a_live_run_is_refused(desk):
    run = desk.run().running()
    done = desk.launch("resume", "last", check=4)
    assert "running" in done.stderr
    assert not run.run.attempt(2).path.exists()


def test_a_cause_that_says_the_same_is_said_once(desk):
    desk.run().plan().attempt(keeper=dead_process()).end(State.CANCELLED, Cause.CANCELLED, 20)
    assert desk.launch("wait", "last", check=20).stdout == "job-abcd cancelled\n"
