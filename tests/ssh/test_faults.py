"""Ranks, agents, supervisors and hosts are lost: the run goes on with nobody at the submitter, to the same weights."""

import signal

import pytest
from lab import command
from ssh_desk import strike

from launcher.run.identity import alive, process_id
from tests.lab.nodes import pid_inside

pytestmark = pytest.mark.nightly

SPARE = "recovery: {spares: 1, lease: 10s}\n"  # shorter ones run out on a machine that is merely busy


def agents(desk, index):
    """The agent, then its guard."""
    return [pid for pid in desk.own("launcher.node", index) if b"zygote" not in command(pid)]


def at_work(desk, steps, more="", **args):
    """A run on the pool, and its state: it stays at a step until it is let go, as what is struck has to live."""
    run = desk.submit(desk.job(steps, more=more, hold=25, **args), "--on", "pool")
    return run, desk.until_step_there(0, run, 20)


@pytest.mark.daily
def test_a_rank_killed_on_another_host(desk):
    run, state = at_work(desk, 150)
    inside = next(rank["pid"] for rank in state["ranks"] if rank["node"] == 1)
    desk.hosts.nodes[1].exec("kill", "-9", str(inside))
    desk.let_go()
    status = desk.wait(run)
    assert (status["restarts"]["by_cause"], status["attempt"]) == ({"killed": 1}, 1)
    assert status["fingerprint"] == desk.fingerprint_here(150)


def test_an_agent_killed(desk):
    """It is back at once, in the same attempt."""
    run, _ = at_work(desk, 200)
    strike(agents(desk, 1)[0])
    desk.let_go()
    status = desk.wait(run)
    assert (status["attempt"], status["restarts"]["by_cause"]) == (1, {"node_lost": 1})
    assert status["fingerprint"] == desk.fingerprint_here(200)


def standbys(desk, count):
    """The processes on the hosts that wait to be the next zygote or agent, once there are so many."""
    found = lambda: [pid for pid in desk.own("zygote") if name_of(pid) == "launch-standby"]  # noqa: E731
    return desk.until("the standbys", lambda: len(pids := found()) == count and pids)


def name_of(pid):
    try:
        with open(f"/proc/{pid}/comm") as file:
            return file.read().strip()
    except OSError:
        return ""  # it has just ended


IMPORTS = "run.preload=[decimal]"  # with nothing to import a zygote leaves no standby


@pytest.mark.daily
def test_after_the_death_of_the_coordinator_s_agent_no_host_imports_again(desk):
    """On each host the standby of the attempt before is the agent of the next one."""
    run = desk.submit(desk.job(200, hold=25), "--on", "pool", "--set", IMPORTS)
    desk.until_step_there(0, run, 20)
    waiting = standbys(desk, 2)
    strike(agents(desk, 0)[0])
    desk.until("the next attempt", lambda: desk.state_there(0, run).get("attempt") == 2)
    desk.until("their agents", lambda: {agents(desk, host)[0] for host in (0, 1) if agents(desk, host)} == {*waiting})
    desk.let_go()
    status = desk.wait(run)
    assert (status["attempt"], status["restarts"]["by_cause"]) == (2, {"node_lost": 1})
    assert status["fingerprint"] == desk.fingerprint_here(200)


def test_a_host_with_nothing_warm_left_gives_its_place_to_a_spare(desk):
    """Its rank, zygote and standby are killed together: it imports once again, and nobody waits for that."""
    folder = desk.project.parent / "slow"
    folder.mkdir()
    (folder / "slow.py").write_text(
        "import os, time\n"
        f"open(f'{folder}/{{os.uname().nodename}}-{{os.getpid()}}', 'w').close()\n"
        f"while os.path.exists('{folder}/wait'):\n    time.sleep(0.01)\n"
    )
    how = ("--set", "run.preload=[slow]", "--set", f"env={{PYTHONPATH: {folder}}}")
    run = desk.submit(desk.job(200, more=SPARE, hold=25), "--on", "pool", *how)
    state = desk.until_step_there(0, run, 20)
    standbys(desk, 3)
    imports = lambda host: len([*folder.glob(f"node{host}-*")])  # noqa: E731
    assert [imports(host) for host in range(3)] == [1, 1, 1]
    (folder / "wait").touch()
    ranks = {rank["pid"] for rank in state["ranks"] if rank["node"] == 1}
    there = [pid for pid in desk.hosts.nodes[1].started() if b"zygote" in command(pid) or pid_inside(pid) in ranks]
    for number in (signal.SIGSTOP, signal.SIGKILL):  # else a standby could take over, and leave one of its own
        for pid in there:
            strike(pid, number)
    desk.let_go()
    desk.until("the next generation", lambda: desk.state_there(0, run).get("generation") == 2)
    status = desk.wait(run)
    assert status["fingerprint"] == desk.fingerprint_here(200)
    assert [imports(host) for host in range(3)] == [1, 2, 1]


@pytest.mark.parametrize("fate", ["killed", "cancelled"])
def test_standbys_that_wait_for_the_next_attempt_end_with_the_run(desk, fate):
    """Also where a host's supervisor is killed while it has nothing else: the second attempt waits for a while."""
    budget = "recovery: {node_lost: {restarts: 9, backoff: 1h..1h}}\n"
    run = desk.submit(desk.job(200, more=budget, hold=25), "--on", "pool", "--set", IMPORTS)
    for attempt in (1, 2):
        desk.until_step_there(0, run, 20 if attempt == 1 else 0, attempt=attempt)
        waiting = standbys(desk, 2)
        strike(agents(desk, 0)[0])
    desk.until("the end of the first host's agent", lambda: not agents(desk, 0))
    assert standbys(desk, 2) == waiting
    if fate == "killed":
        for host in (0, 1):
            strike(desk.own("ssh.host.host_supervisor", host)[0])
        desk.until("their end", lambda: not [pid for pid in waiting if name_of(pid)])
    desk.launch("cancel", run)
    assert desk.left() == []


def ended(desk, index, state):
    """Return whether no rank of that generation lives on the host any more; zombies do not count."""
    node = desk.hosts.nodes[index]
    wanted = {rank["pid"] for rank in state["ranks"] if rank["node"] == index}
    assert wanted, "no rank was there"
    return not any(pid_inside(pid) in wanted and alive(process_id(pid)) for pid in node.started())


def test_an_agent_frozen_with_its_watchdog_its_ranks_end_with_its_lease(desk):
    """By the host's supervisor, which is awake."""
    run, state = at_work(desk, 400, SPARE)
    agent, watchdog = agents(desk, 1)
    desk.freeze(agent)
    desk.freeze(watchdog)
    desk.until("its loss", lambda: "agent_lost" in desk.there(0, run, "events.jsonl").read_text())
    assert ended(desk, 1, state), "beside the next generation they would write on"
    desk.let_go()
    desk.until("the end of the agent, which stays frozen", lambda: agent not in agents(desk, 1))
    status = desk.wait(run)
    assert (status["attempt"], status["restarts"]["by_cause"]) == (1, {"node_lost": 1})
    assert status["fingerprint"] == desk.fingerprint_here(400)


@pytest.mark.parametrize("guarded", [True, False])
def test_a_frozen_coordinator_is_replaced(desk, guarded):
    """Its watchdog ends it; where that is frozen too the others do not wait for its supervisor, which answers as ever,
    and ends both."""
    run, _ = at_work(desk, 400, SPARE)
    frozen = agents(desk, 0)[: 1 if guarded else 2]
    for pid in frozen:
        desk.freeze(pid)
    desk.until("the next attempt", lambda: desk.state_there(1, run).get("attempt") == 2)
    if not guarded:
        desk.until("the end of what was frozen", lambda: not {*frozen} & {*agents(desk, 0)})
    desk.let_go()
    status = desk.wait(run)
    assert (status["state"], status["attempt"]) == ("succeeded", 2)
    assert status["fingerprint"] == desk.fingerprint_here(400)


def test_a_host_gone_it_goes_on_with_a_spare(desk):
    run, _ = at_work(desk, 250, SPARE)
    desk.hosts.nodes[1].power_off()
    desk.let_go()
    status = desk.wait(run)
    assert [node["state"] for node in status["nodes"]] == ["left", "lost", "left"]
    assert status["fingerprint"] == desk.fingerprint_here(250)


def test_all_hosts_lose_power_the_run_is_lost_and_a_resume_goes_on(desk):
    """Each host knows what it had itself; the records that it has of the others' processes must not make it doubt."""
    run, _ = at_work(desk, 250, SPARE)
    for node in desk.hosts.nodes:
        node.power_off()
    assert desk.status(run)["state"] == "unknown", "nobody answers"
    for node in desk.hosts.nodes:
        node.power_on()
    desk.until("the word of all of them", lambda: desk.status(run)["state"] == "lost")
    desk.let_go()
    desk.launch("resume", run)
    status = desk.wait(run)
    assert (status["state"], status["attempt"]) == ("succeeded", 2)
    assert status["fingerprint"] == desk.fingerprint_here(250)


@pytest.mark.daily
def test_the_first_host_gone_the_next_in_line_takes_over(desk):
    """The others import nothing again, although the leases of their agents have run out."""
    run = desk.submit(desk.job(400, more=SPARE, hold=25), "--on", "pool", "--set", IMPORTS)
    desk.until_step_there(0, run, 20)
    standbys(desk, 3)
    began = {command(pid) for host in (1, 2) for pid in desk.own("zygote", host)}  # names the agent that began it
    desk.hosts.nodes[0].power_off()
    desk.until("a leader", lambda: desk.state_there(1, run).get("attempt") == 2)
    desk.until_step_there(1, run, 25, attempt=2)
    assert {command(pid) for host in (1, 2) for pid in desk.own("zygote", host)} == began
    assert desk.record_there(1, run, "avoided.json")[0]["host"] == "node0"
    desk.let_go()
    status = desk.wait(run)
    assert (status["state"], status["attempt"]) == ("succeeded", 2)
    assert [(node["host"], node["state"]) for node in status["nodes"]] == [
        ("node1", "left"), ("node2", "left"), ("node0", "lost"),
    ]  # fmt: skip
    assert status["fingerprint"] == desk.fingerprint_here(400)


def test_the_first_host_gone_and_no_restart_left_the_next_in_line_ends_the_run(desk):
    """It opens an attempt that starts no agents, only to write the end."""
    more = "recovery: {spares: 1, lease: 10s, node_lost: 0}\n"
    run, _ = at_work(desk, 400, more)
    desk.hosts.nodes[0].power_off()
    status = desk.wait(run, check=15)
    assert (status["state"], status["cause"], status["attempt"]) == ("failed", "node_lost", 2)
    assert status["restarts"]["by_cause"] == {}
    ends = lambda: [desk.record_there(host, run, "attempts/0002/exit.json") for host in (1, 2)]  # noqa: E731
    desk.until("its end on both", lambda: all(end is not None and end["state"] == "failed" for end in ends()))
    desk.until("no agent", lambda: not [pid for host in (1, 2) for pid in desk.own("launcher.node", host)])


def test_cut_off_from_the_others_the_first_host_stops(desk):
    """It is fenced by the majority; what it had is gone once its lease is over, and it may not write any more."""
    spec = desk.job(100_000, more=SPARE)
    run = desk.submit(spec, "--on", "pool")
    desk.until_step_there(0, run, 20)
    cut = desk.hosts.nodes[0]
    cut.cut(peers=desk.hosts.nodes[1:3], how="both")
    desk.until_step_there(1, run, 25, attempt=2)
    desk.until("the end of its ranks", lambda: not agents(desk, 0))
    cut.mend()
    assert "node0 may be used again" in desk.launch("pardon", run).stdout
    assert [desk.record_there(host, run, "avoided.json") for host in (1, 2)] == [[], []], "it runs, and they know"
    desk.launch("cancel", run)
    assert desk.left() == []


def test_the_leader_s_supervisor_killed(desk):
    """Its agent goes on; the run is only without somebody who would start it anew."""
    steps = 250  # of which what is left takes longer than a lease
    run, _ = at_work(desk, steps, "recovery: {lease: 10s}\n", pause=0.05)
    strike(desk.own("ssh.host.host_supervisor", 0)[0], signal.SIGKILL)
    desk.let_go()
    assert desk.wait(run)["fingerprint"] == desk.fingerprint_here(steps)
