"""A host that was lost takes part again, and nobody resumes the run: after a boot, and after its supervisor's death."""

import contextlib

import pytest
from ssh_desk import strike

from launcher.places.ssh.doctor_checks import crontab_line

pytestmark = pytest.mark.nightly

RULES = "recovery: {lease: 10s, wait: 5s}\n"


def growing(desk, least=2):
    """A run without an end that wants three hosts and goes on with two."""
    run = desk.submit(desk.job(100_000, nodes=f"{least}..3", more=RULES), "--on", "pool")
    desk.until_step_there(0, run, 10)
    return run


def until_it_is_back(desk, leader, run, host):
    """Query the status, which queries the host, until its agent has joined."""

    def ready():
        desk.status(run)
        nodes = desk.state_there(leader, run).get("nodes", [])
        return any(node["host"] == host and node["state"] in ("spare", "waiting", "up") for node in nodes)

    desk.until(f"{host} in the run", ready)


def until_it_grows(desk, leader, run, world):
    """The next generation has its ranks."""
    state = desk.state_there(leader, run)
    inside = next(rank["pid"] for rank in state["ranks"] if rank["node"] == 0)
    desk.hosts.nodes[leader].exec("kill", "-9", str(inside))
    desk.until("a larger world", lambda: desk.state_there(leader, run).get("world_size") == world)


@pytest.mark.parametrize("lost", ["machine", "supervisor and agent"])
def test_a_host_that_was_lost_is_in_the_next_generation(desk, lost):
    run = growing(desk, least=1)
    node = desk.hosts.nodes[2]
    if lost == "machine":
        node.power_off()
    else:
        for pid in [*desk.own("ssh.host.host_supervisor", 2), *desk.own("launcher.node", 2)]:
            with contextlib.suppress(ProcessLookupError):  # what an agent has goes with it
                strike(pid)
    desk.until("a smaller world", lambda: desk.state_there(0, run).get("world_size") == 4)
    if lost == "machine":
        node.power_on()
    until_it_is_back(desk, 0, run, "node2")
    until_it_grows(desk, 0, run, 6)
    assert desk.state_there(0, run)["attempt"] == 1
    desk.launch("cancel", run)
    assert desk.left() == []
    assert desk.status(run)["state"] == "cancelled"


def test_the_first_host_comes_back_under_the_lead_of_another_and_without_anybody(desk):
    the_first_comes_back(desk)


def the_first_comes_back(desk):
    """Run on the first host what `launch doctor` recommends for @reboot."""
    run = growing(desk)
    desk.hosts.nodes[0].power_off()
    desk.until("a leader", lambda: desk.state_there(1, run).get("attempt") == 2)
    desk.until("two hosts at work", lambda: desk.state_there(1, run).get("world_size") == 4)
    desk.hosts.nodes[0].power_on()
    desk.hosts.ssh(0, crontab_line("~/launch").removeprefix("@reboot "))

    def joined():
        nodes = desk.state_there(1, run).get("nodes", [])
        return any(node["host"] == "node0" and node["state"] == "spare" for node in nodes)

    desk.until("its place in the run", joined)
    until_it_grows(desk, 1, run, 6)
    assert desk.state_there(1, run)["attempt"] == 2
    desk.launch("cancel", run)
    assert desk.left() == []


def kill_supervisor(desk, index, run):
    """Kill the supervisor of a host and query the status until another takes part there, beside the same agent."""
    handle = "attempts/0001/handle.json"
    agents, before = desk.own("launcher.node", index), desk.record_there(index, run, handle)
    strike(desk.own("ssh.host.host_supervisor", index)[0])

    def is_back():
        desk.status(run)
        return desk.record_there(index, run, handle) != before

    desk.until("another supervisor", is_back)
    assert desk.own("launcher.node", index)[: len(agents)] == agents
    assert (state := desk.state_there(0, run))["attempt"] == state["generation"] == 1


def test_a_host_whose_supervisor_was_killed_votes_again_though_its_agent_lives(desk):
    """The run stopped when the leader was lost: one of three hosts was not enough to take over."""
    run = growing(desk)
    kill_supervisor(desk, 2, run)
    desk.hosts.nodes[0].power_off()
    desk.until("a leader", lambda: desk.state_there(1, run).get("attempt") == 2)
    desk.until("two hosts at work", lambda: desk.state_there(1, run).get("world_size") == 4)
    desk.hosts.nodes[0].power_on()
    desk.launch("cancel", run)
    assert desk.left() == []


def test_a_leader_whose_supervisor_was_killed_leads_again_though_its_agent_lives(desk):
    """Failures were copied to no host, and none was left that could open the next attempt with all of them."""
    run = growing(desk, least=3)
    kill_supervisor(desk, 0, run)
    rank = next(rank["pid"] for rank in desk.state_there(0, run)["ranks"] if rank["node"] == 1)
    desk.hosts.nodes[1].exec("kill", "-9", str(rank))
    failures = lambda: '"failure"' in desk.there(2, run, "events.jsonl").read_text()  # noqa: E731
    desk.until("the failure on another host", failures)
    desk.until("the next generation", lambda: desk.state_there(2, run).get("generation") == 2)
    strike(desk.own("launcher.node", 0)[0])
    desk.until("the next attempt", lambda: desk.state_there(2, run).get("attempt") == 2)
    desk.until("all hosts at work", lambda: desk.state_there(0, run).get("world_size") == 6)
    assert desk.record_there(0, run, "attempts/0002/plan.json")["nodes"][0]["host"] == "node0"
    desk.launch("cancel", run)
    assert desk.left() == []
