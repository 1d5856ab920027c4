"""Slurm suspends a job and lets it go on: all of it stands still together, and nobody is lost for that."""

import pytest
from runs import job_of, jobs, two_nodes

from launcher.clock import boottime

pytestmark = pytest.mark.nightly

LEASE_S = 10
RULES = f"recovery:\n  lease: {LEASE_S}s\n  hang_after: {LEASE_S}s\n"


def test_a_job_that_was_suspended_for_longer_than_its_leases_goes_on_as_it_was(desk, slurm):
    run = desk.submit(two_nodes(desk, 100_000, RULES, pause=0.02), "--on", "slurm")
    before = desk.until_step(run, 20)
    slurm.ask("scontrol", "suspend", job_of(desk, run))

    def silent():
        return desk.read_state(run)["monotonic_s"] < boottime() - LEASE_S - 2

    desk.until("silence for longer than a lease", silent)
    said = desk.status(run)
    assert said["state"] == "running" and "suspended" in said["message"], said
    assert [node["state"] for node in said["nodes"]] == ["up", "up"]
    slurm.ask("scontrol", "resume", job_of(desk, run))
    after = desk.until_step(run, desk.read_state(run)["step"] + 20)
    assert [rank["pid"] for rank in after["ranks"]] == [rank["pid"] for rank in before["ranks"]]
    desk.until("the stall to be written down", lambda: desk.events(run, "coordinator_stalled"))
    assert desk.events(run, "agent_lost") == desk.events(run, "failure") == []
    status = desk.status(run)
    assert (status["attempt"], status["generation"], status["restarts"]["total"]) == (1, 1, 0)
    assert "suspended" not in status["message"]
    desk.launch("cancel", run)


def test_a_job_that_is_suspended_can_be_cancelled(desk, slurm):
    run = desk.submit(two_nodes(desk, 100_000, "recovery:\n  grace: 1h\n", pause=0.02), "--on", "slurm")
    desk.until_step(run, 20)
    slurm.ask("scontrol", "suspend", job_of(desk, run))
    desk.launch("cancel", run)  # who waited for a word of the ranks would do so for an hour
    assert desk.status(run)["state"] == "cancelled"
    assert jobs(slurm) == []
