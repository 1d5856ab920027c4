"""Hosts have no scheduler: two runs never share what one of them holds, and whoever comes second waits and says so."""

import json
from itertools import pairwise

import pytest
from ssh_desk import command_line

pytestmark = pytest.mark.nightly


def test_the_second_run_waits_and_starts_by_itself(desk):
    first = desk.submit(desk.job(100_000, nodes="4"), "--on", "pool")
    desk.until_step_there(0, first, 3)
    second = desk.submit(desk.job(20, nodes="2"), "--on", "pool")
    waits = desk.until("the queue", lambda: (s := desk.status(second))["state"] == "queued" and s)
    assert f"waits for 2 of 2 CPU slots on node0: {first} (root) has 2" in waits["message"]
    held = json.loads(desk.launch("hosts", "--json").stdout.splitlines()[0])
    assert [holder["run"] for holder in held["held"]] == [first]
    assert [waiter["run"] for waiter in held["waiting"]] == [second]
    table = desk.launch("hosts").stdout
    assert f"{first} (root): 2 CPUs, 1 waiting" in table
    desk.launch("cancel", first)
    assert desk.wait(second)["state"] == "succeeded"


def test_hosts_with_room_are_taken_first(desk):
    first = desk.submit(desk.job(100_000), "--on", "pool")
    desk.until_step_there(0, first, 3)
    status = desk.wait(desk.submit(desk.job(10), "--on", "pool"))
    assert [node["host"] for node in status["nodes"]] == ["node2", "node3"]
    desk.launch("cancel", first)


@pytest.mark.daily
def test_a_waiting_run_is_cancelled(desk):
    first = desk.submit(desk.job(100_000, nodes="4"), "--on", "pool")
    desk.until_step_there(0, first, 3)
    second = desk.submit(desk.job(20), "--on", "pool")
    desk.until("the queue", lambda: desk.status(second)["state"] == "queued")
    desk.launch("cancel", second)
    assert desk.status(second)["state"] == "cancelled"
    assert not [pid for pid in desk.own("ssh.host.host_supervisor") if second.encode() in command_line(pid)]
    desk.launch("cancel", first)


def test_two_that_want_all_hosts_come_one_after_the_other(desk):
    runs = [desk.submit(desk.job(20, nodes="4"), "--on", "pool") for _ in range(3)]
    spans = sorted((desk.wait(run)["started_at"], desk.status(run)["ended_at"]) for run in runs)
    assert all(ended <= started + 0.5 for (_, ended), (started, _) in pairwise(spans))
