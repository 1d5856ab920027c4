"""The same user at another machine: the run is found on its hosts by its id, watched and ended from there."""

import pytest
from ssh_desk import Desk

pytestmark = pytest.mark.nightly


@pytest.fixture
def elsewhere(tmp_path, hosts):
    """Another machine of the same user: the same pool, and nothing else in common."""
    (tmp_path / "elsewhere").mkdir()
    return Desk(tmp_path / "elsewhere", hosts)


def test_it_is_watched_and_ended_from_another_machine(desk, elsewhere):
    run = desk.submit(desk.job(100_000), "--on", "pool")
    desk.until_step_there(0, run, 5)
    status = elsewhere.status(run)
    assert (status["state"], status["cluster"], status["name"]) == ("running", "pool", "chain")
    assert [node["host"] for node in status["nodes"]] == ["node0", "node1"]
    assert "step 1" in elsewhere.launch("logs", run[:-1]).stdout
    assert run in elsewhere.launch("status").stdout
    assert "no such run" in elsewhere.launch("status", "nothing-like-it", check=3).stderr
    elsewhere.launch("cancel", run)
    assert desk.left() == []
    assert desk.status(run)["state"] == elsewhere.status(run)["state"] == "cancelled"


def test_a_run_that_was_resumed_on_other_hosts_is_found_there(desk, elsewhere):
    """Those that it had been on went on saying cancelled, and so did the other machine, for ever."""
    run = desk.submit(desk.job(100_000), "--on", "pool")
    desk.until_step_there(0, run, 5)
    assert elsewhere.status(run)["state"] == "running"
    desk.launch("cancel", run)
    assert elsewhere.status(run)["state"] == "cancelled"
    other = desk.submit(desk.job(100_000), "--on", "pool")
    desk.until_step_there(0, other, 2)
    desk.launch("resume", run)
    desk.until_step_there(2, run, 6)
    found = elsewhere.status(run)
    assert (found["state"], found["attempt"]) == ("running", 2)
    assert [node["host"] for node in found["nodes"]] == ["node2", "node3"]
    elsewhere.launch("cancel", run)
    desk.launch("cancel", other)
    assert desk.left() == []
