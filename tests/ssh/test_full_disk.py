"""A host whose disk is full: its part goes to the spare, in the next attempt too, and what stays full does no harm."""

import pytest
from lab import command
from ssh_desk import strike


class SmallDisk:
    """The small tmpfs on which a host keeps its runs; this machine does not see it."""

    def __init__(self, hosts, index):
        self._node, self.folder = hosts.nodes[index], hosts.place / "home" / "launch" / "runs"

    def do(self, *words):
        done = self._node.exec(*words)
        assert done.returncode == 0, done.stderr

    def lay(self):
        self.do("mkdir", "-p", "-m", "700", str(self.folder.parent), str(self.folder))
        self.do("mount", "-t", "tmpfs", "-o", "size=8m,mode=700", "none", str(self.folder))

    def fill(self):
        self._node.exec("sh", "-c", f"cat /dev/zero >{self.folder}/.filler")
        assert self._node.exec("df", "--output=avail", str(self.folder)).stdout.split()[-1] == "0"

    def free(self):
        self.do("rm", f"{self.folder}/.filler")


@pytest.fixture
def disk_of_node1(desk):
    disk = SmallDisk(desk.hosts, 1)
    disk.lay()
    yield disk
    desk.until("the end of its supervisor, which needs it", lambda: not desk.own("ssh.host.host_supervisor", 1))
    disk.do("umount", "--lazy", str(disk.folder))


@pytest.mark.nightly
def test_a_full_disk_of_one_host(desk, disk_of_node1):
    run = desk.submit(desk.job(100, more="recovery: {spares: 1, lease: 10s}\n", hold=25), "--on", "pool")
    desk.until_step_there(0, run, 20)
    disk_of_node1.fill()
    desk.hold(50)  # until there it saves again

    def at_work(attempt):
        state = desk.state_there(0, run)
        there = {node["host"] for node in state["nodes"] if node["ranks"]}
        return state if (state["attempt"], state["state"], there) == (attempt, "running", {"node0", "node2"}) else None

    state = desk.until("the spare at work", lambda: at_work(1))
    assert (state["restarts"], state["failure"]["cause"], state["failure"]["node"]) == ({"disk": 1}, "disk", 1)
    assert "o space left on device" in state["failure"]["summary"]
    strike(next(pid for pid in desk.own("launcher.node", 0) if b"zygote" not in command(pid)))
    state = desk.until("the spare at work again", lambda: at_work(2))
    assert [node["host"] for node in state["nodes"]] == ["node0", "node2", "node1"]
    disk_of_node1.free()
    desk.let_go()
    status = desk.wait(run)
    assert status["fingerprint"] == desk.fingerprint_here(100)
