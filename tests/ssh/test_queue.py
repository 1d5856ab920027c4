"""Hosts have no scheduler: two runs never share what one of them holds, and whoever comes second waits and says so."""

import json

import pytest
from lab import command

pytestmark = pytest.mark.nightly


@pytest.mark.daily
def test_the_second_run_waits_and_starts_by_itself_and_the_third_is_cancelled_while_it_waits(desk):
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
    third = desk.submit(desk.job(20), "--on", "pool")
    desk.until("its place in the queue", lambda: desk.status(third)["state"] == "queued")
    desk.launch("cancel", third)
    assert desk.status(third)["state"] == "cancelled"
    assert not [pid for pid in desk.own("ssh.host.host_supervisor") if third.encode() in command(pid)]
    desk.launch("cancel", first)
    assert desk.wait(second)["state"] == "succeeded"
