"""Runs on a pool that wait before they want any host: one of their hosts sees to it, and nobody else is needed."""

import pytest
from ledger_job import STEPS, WORK, job

pytestmark = pytest.mark.nightly


@pytest.fixture
def ledger(desk, tmp_path):
    desk.script("work.py", WORK)
    found = tmp_path / "ledger"
    desk.env["LAUNCH_TEST_LEDGER"] = str(found)
    desk.spec(job(found))
    return found


def waits(desk, run, why):
    desk.until(f"queued: {why}", lambda: desk.status(run)["state"] == "queued" and why in desk.status(run)["message"])


def test_on_the_host_of_the_run_that_it_follows_it_waits_for_that_and_takes_no_slots(desk, ledger):
    first = desk.submit("job.yaml", "--on", "pool", "--hold")
    two = ("--on", "pool", "--set", "resources.nodes=2")
    then, late = desk.submit("job.yaml", *two, "--after", first), desk.submit("job.yaml", *two, "--at", "2037-01-31")
    waits(desk, first, f"held until `launch release {first}`")
    waits(desk, then, f"waits for {first} to succeed (it is queued)")
    waits(desk, late, "starts at 2037-01-31")
    assert desk.status(desk.submit("job.yaml", "--on", "pool"))["state"] != "queued"
    desk.launch("release", first)
    assert desk.wait(then)["state"] == "succeeded"
    assert desk.status(then)["nodes"][0]["host"] == desk.status(first)["nodes"][0]["host"]
    assert desk.status(then)["started_at"] >= desk.status(first)["ended_at"]
    desk.launch("cancel", late)
    assert desk.status(late)["state"] == "cancelled"


@pytest.mark.daily
def test_who_follows_one_that_fails_is_cancelled_and_resumed_with_it(desk, ledger):
    desk.spec(job(ledger) + STEPS)
    refused = ledger.with_name("ledger.first")
    refused.touch()
    graph = desk.submit("job.yaml", "--on", "pool")
    first, last = f"{graph}-first", f"{graph}-last"
    desk.launch("wait", graph, check=10)
    told = [step["status"] for step in desk.status(graph)["steps"]]
    assert [one["state"] for one in told] == ["failed", "cancelled"]
    assert told[1]["message"].startswith(f"{first}, which it was to follow, is failed")
    refused.unlink()
    desk.launch("resume", graph)
    desk.launch("wait", graph)
    there = f"{desk.hosts.place}/launch/runs/{first}/checkpoints/best"
    lines = ledger.read_text().splitlines()
    assert lines[:2] == [f"{first} first", f"{first} first"]
    assert lines[2].startswith(f"{last} last ") and lines[2].endswith(f"/launch/runs/{first}/checkpoints/best"), there


def test_what_no_host_sees_is_waited_for_here_and_files_on_other_disks_are_refused(desk, ledger):
    here = desk.submit("job.yaml", "--hold")
    done = desk.launch("submit", "job.yaml", "--on", "pool", "--after", here)
    assert f"pool cannot wait for {here}: this machine does" in done.stderr
    there = done.stdout.strip()
    waits(desk, there, f"waits for {here} to succeed")
    desk.launch("release", here)
    assert desk.wait(there)["nodes"][0]["host"].startswith("node")
    desk.spec(job(ledger).replace("{ranks_per_node", "{nodes: 2, ranks_per_node") + STEPS, "two.yaml")
    done = desk.launch("submit", "two.yaml", "--on", "pool", check=2)
    assert "${steps.first.best_checkpoint}: hosts of pool have a disk each" in done.stderr


def test_of_runs_that_are_submitted_together_so_many_go_on_at_once_wherever_they_run(desk, ledger):
    done = desk.launch("submit", "job.yaml", "--on", "pool", "--repeat", "3", "--max-parallel", "1", "--hold")
    assert "pool cannot wait for runs that are submitted together: this machine does" in done.stderr
    first, second, third = done.stdout.split()
    waits(desk, second, f"1 of the runs that were submitted with it are running or waiting: {first}")
    for run in (third, second, first):
        desk.launch("release", run)
    assert [desk.wait(run)["state"] for run in (first, second, third)] == ["succeeded"] * 3
    assert desk.status(third)["started_at"] >= desk.status(second)["ended_at"]
    assert desk.status(second)["started_at"] >= desk.status(first)["ended_at"]
    alone = desk.launch("submit", "job.yaml", "--on", "pool", "--max-parallel", "1")
    assert "this machine does" not in alone.stderr
    assert desk.wait(alone.stdout.strip())["state"] == "succeeded"
