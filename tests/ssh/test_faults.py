"""Ranks, agents, keepers and hosts are lost: the run goes on without anybody at the submitter, to the same weights."""

import signal

import pytest
from ssh_desk import strike


def agents(desk, index):
    return [pid for pid in desk.own("launcher.agent", index) if b"zygote" not in desk_command(pid)]


def desk_command(pid):
    with open(f"/proc/{pid}/cmdline", "rb") as file:
        return file.read()


def test_a_rank_killed_on_another_host(desk):
    run = desk.submit(desk.job(150), "--on", "pool")
    state = desk.until_step_there(0, run, 20)
    inside = next(rank["pid"] for rank in state["ranks"] if rank["node"] == 1)
    desk.hosts.nodes[1].exec("kill", "-9", str(inside))
    status = desk.wait(run)
    assert (status["restarts"]["by_cause"], status["attempt"]) == ({"killed": 1}, 1)
    assert status["fingerprint"] == desk.fingerprint_here(150)


@pytest.mark.parametrize("host", [0, 1])
def test_an_agent_killed(desk, host):
    """The first one's brings a new attempt, which all hosts take up; another one's is back at once."""
    run = desk.submit(desk.job(200), "--on", "pool")
    desk.until_step_there(0, run, 20)
    strike(agents(desk, host)[0])
    status = desk.wait(run)
    assert status["attempt"] == (2 if host == 0 else 1)
    assert status["restarts"]["by_cause"] == {"node_lost": 1}
    assert status["fingerprint"] == desk.fingerprint_here(200)


def test_a_host_gone_it_goes_on_with_a_spare(desk):
    spec = desk.job(250, more="recovery: {spares: 1, lease: 3s}\n")
    run = desk.submit(spec, "--on", "pool")
    desk.until_step_there(0, run, 20)
    desk.hosts.nodes[1].power_off()
    status = desk.wait(run)
    assert [node["state"] for node in status["nodes"]] == ["up", "lost", "up"]
    assert status["fingerprint"] == desk.fingerprint_here(250)


def test_the_first_host_gone_the_next_in_line_takes_over(desk):
    spec = desk.job(400, more="recovery: {spares: 1, lease: 3s}\n")
    run = desk.submit(spec, "--on", "pool")
    desk.until_step_there(0, run, 20)
    desk.hosts.nodes[0].power_off()
    desk.until("a leader", lambda: desk.state_there(1, run).get("attempt") == 2)
    assert desk.record_there(1, run, "avoided.json")[0]["host"] == "node0"
    status = desk.wait(run)
    assert (status["state"], status["attempt"]) == ("succeeded", 2)
    assert [node["host"] for node in status["nodes"]] == ["node1", "node2"]
    assert status["fingerprint"] == desk.fingerprint_here(400)


def test_cut_off_from_the_others_the_first_host_stops(desk):
    """It is fenced by the majority; what it had is gone once its lease is over, and it may not write any more."""
    spec = desk.job(100_000, more="recovery: {spares: 1, lease: 3s}\n")
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


def test_the_leader_s_keeper_killed(desk):
    """Its agent goes on; the run is only without somebody who would start it anew."""
    run = desk.submit(desk.job(300, more="recovery: {lease: 3s}\n"), "--on", "pool")
    desk.until_step_there(0, run, 20)
    strike(desk.own("ssh.host.keeper", 0)[0], signal.SIGKILL)
    assert desk.wait(run)["fingerprint"] == desk.fingerprint_here(300)
