"""Cancel on every host at once: whatever ranks have started, nothing of it is left, and no stranger is hit."""

import pytest
from lab import command

pytestmark = pytest.mark.nightly


def asleep(desk, index):
    """Return the arguments of all `sleep` processes on the host."""
    lines = [command(pid).split(b"\0") for pid in desk.hosts.nodes[index].started()]
    return {line[1] for line in lines if line[0] == b"sleep"}


@pytest.mark.daily
def test_nothing_is_left_of_stubborn_ranks(desk):
    desk.script("stay.py")
    spec = "name: stay\nrun:\n  script: stay.py\n  preload: []\nresources: {nodes: 2, ranks_per_node: 1}\n"
    run = desk.submit(desk.spec(spec + "recovery: {grace: 1s}\n"), "--on", "pool")
    desk.until_step_there(0, run, 5)
    strangers = [desk.hosts.ssh(index, "setsid sleep 605 >/dev/null 2>&1 & echo $!") for index in (0, 1)]
    desk.until("all that they have started", lambda: {b"601", b"602", b"605"} <= asleep(desk, 0) & asleep(desk, 1))
    said = desk.launch("cancel", run).stdout
    assert f"{run} is cancelled" in said and "on node0" in said and "on node1" in said
    left = [line for pid in desk.everything() if b"sleep" in (line := command(pid))]
    assert (left, desk.left()) == ([b"sleep\x00605\x00"] * 2, [])
    for index, pid in enumerate(strangers):
        desk.hosts.ssh(index, f"kill {pid.strip()}")
    assert "already ended" in desk.launch("cancel", run).stdout
    desk.launch("wait", run, check=20)


def test_the_supervisor_killed_first(desk):
    run = desk.submit(desk.job(100_000), "--on", "pool")
    desk.until_step_there(0, run, 5)
    for pid in desk.own("ssh.host.host_supervisor"):
        desk.kill(pid)
    desk.launch("cancel", run)
    assert desk.left() == []
    assert desk.status(run)["state"] == "cancelled"


def test_a_frozen_agent(desk):
    run = desk.submit(desk.job(100_000, more="recovery: {grace: 1s}\n"), "--on", "pool")
    desk.until_step_there(0, run, 5)
    for pid in desk.own("launcher.node", 1):
        desk.freeze(pid)
    desk.launch("cancel", run)
    assert desk.left() == []
