"""Runs that wait on Slurm wait as Slurm's jobs do: held, later, after others, so many of an array at once."""

import pytest
from runs import job_of, two_nodes

pytestmark = pytest.mark.nightly

FAILS = "name: bad\nrun: {command: 'exit 3'}\nresources: {ranks_per_node: 1}\nrecovery: {user_error: 0}\n"


def waits(desk, run, why):
    def said():
        status = desk.status(run)
        assert status["state"] in ("starting", "queued"), status  # at first nobody has said yet what it waits for
        return status["state"] == "queued" and why in status["message"]

    return desk.until(f"queued: {why}", said)


@pytest.mark.daily
def test_a_held_run_is_released_and_who_follows_it_starts_after_it(desk):
    spec = two_nodes(desk, 10)
    first = desk.submit(spec, "--on", "slurm", "--hold", "--priority", "-5")
    then = desk.submit(spec, "--on", "slurm", "--after", first)
    waits(desk, first, "held by you")
    waits(desk, then, "waiting for another job to end")
    step = desk.launch("submit", spec, "--on", "slurm", "--after", f"{first}:step=3")
    assert f"slurm cannot wait for {first}: this machine does" in step.stderr
    step = step.stdout.strip()
    waits(desk, step, f"waits for {first} to come to step 3")
    forward = desk.launch("submit", spec, "--on", "slurm", "--priority", "5", check=2)
    assert "queue.priority: Slurm lets you put your jobs back, not forward" in forward.stderr
    desk.launch("release", first)
    assert desk.wait(first)["state"] == "succeeded"
    assert desk.wait(then)["state"] == "succeeded"
    assert desk.wait(step)["state"] == "succeeded"
    assert desk.status(step)["cluster"] == "slurm"
    assert desk.status(then)["started_at"] >= desk.status(first)["ended_at"]


def test_who_follows_a_run_that_fails_is_cancelled(desk):
    bad = desk.submit(desk.spec(FAILS, "bad.yaml"), "--on", "slurm", "--hold")
    then = desk.submit(two_nodes(desk, 10), "--on", "slurm", "--after", bad)
    desk.launch("release", bad)
    desk.wait(bad, check=None)
    status = desk.wait(then, check=None)
    assert status["state"] == "cancelled", status
    assert "ended otherwise than it demands" in status["message"]


def test_of_an_array_so_many_go_on_at_once_and_a_start_waits_for_its_time(desk, slurm):
    spec = two_nodes(desk, 10)
    runs = desk.launch("submit", spec, "--on", "slurm", "--repeat", "3", "--max-parallel", "1").stdout.split()
    assert "ArrayTaskThrottle=1" in slurm.ask("scontrol", "show", "job", job_of(desk, runs[0]).partition("_")[0])
    later = desk.submit(spec, "--on", "slurm", "--at", "2037-01-31 22:00")
    waits(desk, later, "starts after a delay")
    assert "StartTime=2037-01-31T22:00:00" in slurm.ask("scontrol", "show", "job", job_of(desk, later))
    desk.launch("cancel", later)
    ended = [desk.wait(run) for run in runs]
    assert [status["state"] for status in ended] == ["succeeded"] * 3
