"""Runs that wait on a login node's cluster: it waits for them there, for runs as they are called there."""

import pytest
from ledger_job import STEPS, WORK, job

from tests.waits import until

pytestmark = pytest.mark.nightly


@pytest.fixture
def desk(laptop, login_node, tmp_path):
    laptop.ledger = tmp_path / "ledger"
    laptop.script("work.py", WORK)
    laptop.spec(job(laptop.ledger))
    return laptop


def queued(desk, run, why):
    until(f"queued: {why}", lambda: desk.status(run)["state"] == "queued" and why in desk.status(run)["message"])


def refused(desk, *words):
    return desk.launch("submit", "job.yaml", "--on", "hpc", *words, check=2).stderr


def test_a_run_follows_another_there_once_that_is_released_or_its_moment_has_come(desk, login_node):
    first = desk.submit("--hold")
    then, any_end = desk.submit("--after", first), desk.submit("--after", f"{first}:ended")
    late = desk.submit("--at", "2037-01-31 22:00")
    queued(desk, first, "held until")
    queued(desk, then, f"waits for {first} to succeed")
    queued(desk, late, "starts at 2037-01-31")
    assert not desk.ledger.exists()
    desk.ledger.with_name("ledger.work").touch()
    desk.launch("release", first)
    desk.launch("wait", first, check=10)
    desk.launch("wait", any_end, check=10)
    assert f"{first}, which it was to follow, is failed" in desk.launch("wait", then, check=20).stdout
    desk.ledger.with_name("ledger.work").unlink()
    desk.launch("resume", first)
    desk.launch("resume", then, "--set", f"queue.after={first}")
    desk.launch("wait", then)
    assert [line.split()[0] for line in desk.ledger.read_text().splitlines()] == [first, any_end, first, then]
    desk.launch("cancel", late)


@pytest.mark.daily
def test_what_cannot_be_waited_for_there_is_refused_before_there_is_anything(desk, login_node):
    assert "queue.slots: asks for 4000 cores" in refused(desk, "--set", "queue.slots=4000")
    assert login_node.runs() == []


def test_steps_follow_each_other_there_and_know_each_others_folders(desk, login_node):
    desk.spec(job(desk.ledger) + STEPS)
    graph = desk.submit()
    desk.launch("wait", graph)
    folder = login_node.home / "launch" / "runs" / f"{graph}-first"
    assert folder.is_dir()
    assert desk.ledger.read_text().splitlines() == [
        f"{graph}-first first",
        f"{graph}-last last {folder}/checkpoints/best",
    ]
