"""Other pools: one disk for all hosts, hosts behind another one, hosts of another user."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from lab import BOUND_S
from ssh_desk import strike

pytestmark = pytest.mark.nightly


def test_one_disk_for_all_hosts(pool_of):
    """The run is there once; what happens to agents and to the first host is survived as without a common disk."""
    desk = pool_of(hosts=3, shared=True)
    run = desk.submit(desk.job(400, more="recovery: {spares: 1, lease: 3s}\n", hold=399), "--on", "pool")
    desk.until_step_there(0, run, 20)
    assert len(list((desk.hosts.home(0) / "launch" / "runs").iterdir())) == 1
    strike(next(pid for pid in desk.own("launcher.node", 0)))
    desk.until_step_there(0, run, 40, attempt=2)
    desk.hosts.nodes[0].power_off()
    desk.let_go()
    status = desk.wait(run)
    assert (status["state"], status["attempt"]) == ("succeeded", 3)
    assert status["fingerprint"] == desk.fingerprint_here(400)


def test_one_disk_for_all_hosts_a_killed_supervisor_is_replaced_beside_its_agent(pool_of):
    """The run worked on without it, but another host had to take over at the next failure, and ended all its ranks."""
    desk = pool_of(hosts=2, shared=True)
    run = desk.submit(desk.job(400, more="recovery: {lease: 10s}\n", hold=399), "--on", "pool")
    desk.until_step_there(0, run, 20)
    for index, started in ((1, "attempts/0001/node-01/started"), (0, "attempts/0001/started")):
        agents, before = desk.own("launcher.node", index), desk.record_there(0, run, started)
        strike(desk.own("ssh.host.host_supervisor", index)[0])
        is_back = lambda: desk.status(run) and desk.record_there(0, run, started) != before  # noqa: B023, E731
        desk.until("another supervisor", is_back)
        assert desk.own("launcher.node", index)[: len(agents)] == agents
    desk.let_go()
    status = desk.wait(run)
    assert (status["state"], status["attempt"], status["generation"]) == ("succeeded", 1, 1)
    assert status["fingerprint"] == desk.fingerprint_here(400)


def test_eight_submits_at_once_to_hosts_with_nothing_of_ours(pool_of):
    """All of them run; each host has one environment of ours afterwards, which one of them has made."""
    desk = pool_of(hosts=2)
    words = [sys.executable, "-m", "launcher.cli.main", "submit", desk.job(20, nodes="1"), "--on", "pool"]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    submits = [subprocess.Popen(words, cwd=desk.project, env=desk.env, **pipes) for _ in range(8)]
    said = [submit.communicate(timeout=BOUND_S) for submit in submits]
    assert [submit.returncode for submit in submits] == [0] * 8, said
    for index in range(2):
        libraries = os.listdir(desk.hosts.home(index) / "launch" / "lib")
        assert len([name for name in libraries if not name.startswith(".")]) == 1, libraries
    desk.launch("wait", *(out.strip() for out, _ in said))


def test_one_disk_that_the_pool_does_not_tell_of_is_noticed_at_submit(pool_of):
    desk = pool_of(hosts=3, shared=True)
    wrong = desk.spec(desk.hosts.clusters_yaml(shared=False), "wrong.yaml")
    os.chmod(desk.project / wrong, 0o600)
    refused = desk.launch("submit", desk.job(20), "--on", "pool", "--clusters", wrong, check=2)
    assert "another host of the pool has this very disk" in refused.stderr
    assert "hint: `shared: true` in the pool" in refused.stderr
    run = desk.submit(desk.job(20), "--on", "pool")
    assert desk.wait(run)["state"] == "succeeded"


def test_hosts_behind_another_one(pool_of):
    desk = pool_of(hosts=2, jump=True)
    run = desk.submit(desk.job(20), "--on", "pool")
    status = desk.wait(run)
    assert (status["state"], len(status["nodes"])) == ("succeeded", 2)
    assert "node1" in desk.launch("hosts").stdout


@pytest.mark.daily
def test_over_the_users_own_ssh(pool_of):
    """The same as over paramiko, which nothing of it needs."""
    desk = pool_of(hosts=2)
    theirs = desk.spec(
        json.dumps({"pool": {"kind": "ssh", "hosts": ["node0", "node1"], "transport": "openssh"}}), "open.yaml"
    )
    os.chmod(desk.project / theirs, 0o600)
    run = desk.submit(desk.job(400, hold=399), "--on", "pool", "--clusters", theirs)
    desk.until_step_there(0, run, 20)
    looked = subprocess.run(
        [sys.executable, "-c", LOOK, "status", run], cwd=desk.project, env=desk.env, capture_output=True, text=True
    )
    assert looked.returncode == 0, looked.stderr
    assert "running" in looked.stdout
    desk.let_go()
    status = desk.wait(run)
    assert (status["state"], len(status["nodes"])) == ("succeeded", 2)
    assert "logs and metrics, " in desk.launch("fetch", run).stdout
    noted = (desk.project / ".launch" / "runs" / run / "metrics").glob("environment.*.a0001.jsonl")
    assert [json.loads(path.read_bytes())["host"] for path in sorted(noted)] == ["node0", "node1"]
    assert desk.launch("hosts", "pool", "--clusters", theirs).stdout.count(" ok ") == 2


LOOK = """
import sys
sys.modules["paramiko"] = None  # an import of it fails
from launcher.cli.main import main
sys.exit(main(sys.argv[1:]))
"""


def reachable_by_others(path):
    return all(Path(part).stat().st_mode & 0o001 for part in (path, *path.parents))


def test_two_users_never_share_what_a_host_has(pool_of):
    desk = pool_of(hosts=2)
    if not reachable_by_others(desk.hosts.folder):
        pytest.fail(f"other users cannot pass through {desk.hosts.folder}")
    theirs = desk.spec(json.dumps({"pool": {"kind": "ssh", "hosts": ["node0", "node1"], "user": "ann"}}), "ann.yaml")
    os.chmod(desk.project / theirs, 0o600)
    mine = desk.submit(desk.job(100_000), "--on", "pool")
    desk.until_step_there(0, mine, 5)
    hers = desk.submit(desk.job(20), "--on", "pool", "--clusters", theirs)
    waits = desk.until("the queue", lambda: (s := desk.status(hers))["state"] == "queued" and s)
    assert f"{mine} (root) has 2" in waits["message"]
    assert f"{mine} (root): 2 CPUs, 1 waiting" in desk.launch("hosts", "--clusters", theirs).stdout
    desk.launch("cancel", mine)
    assert desk.wait(hers)["state"] == "succeeded"
    folder = desk.hosts.home(0, "ann") / "launch" / "runs" / hers
    assert (folder.stat().st_uid, folder.stat().st_mode & 0o777) == (20001, 0o700)
