"""The controller is down, frozen, slow: nothing is called failed because nobody answers."""

import pytest
from runs import record, two_nodes

pytestmark = pytest.mark.nightly


@pytest.mark.daily
def test_with_the_controller_down_the_run_goes_on_and_status_says_what_it_knows(desk, slurm):
    run = desk.submit(two_nodes(desk, 100_000), "--on", "slurm")
    desk.until_step(run, 10)
    desk.status(run)
    slurm.save_state()  # else it may have forgotten the job when it comes back
    slurm.stop_controller()
    status = desk.status(run)
    assert status["state"] == "unknown"
    assert "controller does not answer" in status["message"] and "last seen RUNNING at 20" in status["message"]
    step = desk.read_state(run)["step"]
    desk.until_step(run, step + 10)
    slurm.start_controller()
    assert desk.until("an answer", lambda: desk.status(run)["state"] == "running")
    desk.launch("cancel", run)


def test_a_frozen_controller_is_given_up_in_time(desk, slurm):
    run = desk.submit(two_nodes(desk, 100_000), "--on", "slurm")
    desk.until_step(run, 10)
    desk.status(run)
    slurm.freeze_controller()
    try:
        table = desk.launch("status").stdout
        assert "unknown" in table and "failed" not in table
    finally:
        slurm.thaw_controller()
    desk.until("an answer", lambda: desk.status(run)["state"] == "running")
    desk.launch("cancel", run)


def test_a_cancel_without_the_controller_reaches_the_run_by_its_folder(desk, slurm):
    run = desk.submit(two_nodes(desk, 100_000), "--on", "slurm")
    desk.until_step(run, 10)
    slurm.save_state()  # else it may have forgotten the job when it comes back
    slurm.stop_controller()
    said = desk.launch("cancel", run, check=5).stderr
    assert "controller does not answer" in said and "reads the wish to end in its folder" in said
    assert desk.until("the end", lambda: record(desk, run, "exit.json"))["state"] == "cancelled"
    slurm.start_controller()
    assert desk.status(run)["state"] == "cancelled"


def test_a_submit_without_the_controller_leaves_nothing(desk, slurm):
    slurm.stop_controller()
    said = desk.launch("submit", two_nodes(desk), "--on", "slurm", check=5).stderr
    assert "controller does not answer" in said
    slurm.start_controller()
    assert desk.launch("status").stdout == ""
