"""A pool whose hosts a command names: one is lost for good, the command names another, and whoever follows the run has
it go on there, to the same weights."""

import subprocess
import sys

import pytest


@pytest.fixture
def listed(desk):
    """Have the pool's command name these hosts from now on."""
    folder = desk.project.parent
    (folder / "hosts.sh").write_text("#!/bin/sh\ncat listed\n")
    (folder / "hosts.sh").chmod(0o700)
    clusters = folder / "clusters.yaml"
    clusters.write_text("cloud:\n  kind: ssh\n  hosts: {command: [./hosts.sh]}\n")
    clusters.chmod(0o600)
    desk.env["LAUNCH_CLUSTERS"] = str(clusters)

    def say(*names):
        (folder / "draft").write_text("".join(f"{name}\n" for name in names))
        (folder / "draft").replace(folder / "listed")

    return say


@pytest.mark.parametrize("lost", [1, pytest.param(0, marks=pytest.mark.nightly)])
def test_a_lost_host_is_replaced_by_one_that_the_command_names_then(desk, listed, lost):
    """Of two: without the second the first one says that too few are left, without the first there is no majority."""
    listed("node0", "node1")
    spec = desk.job(250, more="recovery: {lease: 10s, wait: 5s}\n", hold=25)
    words = [sys.executable, "-m", "launcher.cli.main", "submit", spec, "--on", "cloud", "--follow"]
    with subprocess.Popen(
        words, cwd=desk.project, env=desk.env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as follower:
        run = follower.stdout.readline().strip()
        desk.until_step_there(0, run, 20)
        desk.until("the follower's own look", lambda: desk.read_state(run)["state"] == "running")
        desk.hosts.nodes[lost].power_off()
        listed(f"node{1 - lost}", "node2")
        desk.let_go()
        _, told = follower.communicate(timeout=300)
    assert follower.returncode == 0, told
    status = desk.status(run)
    assert (status["state"], status["attempt"]) == ("succeeded", 2)
    assert not desk.events(run, "may_begin_anew"), "no person has said so"
    assert {node["host"] for node in status["nodes"]} == {f"node{1 - lost}", "node2"}
    assert status["fingerprint"] == desk.fingerprint_here(250)


def test_errors_of_the_command_come_before_anything_is_started(desk, listed):
    spec = desk.job()
    listed()
    done = desk.launch("submit", spec, "--on", "cloud", check=2)
    assert "cloud: ./hosts.sh, which names its hosts: expected 1 to 1000 hosts, got none" in done.stderr
    (desk.project.parent / "listed").unlink()
    for words in (["submit", spec, "--on", "cloud"], ["submit", spec, "--on", "cloud", "--dry-run"], ["nodes", "list"]):
        done = desk.launch(*words, check=5)
        assert "cloud: ./hosts.sh, which names its hosts: exit code 1" in done.stderr
        assert "No such file or directory" in done.stderr
    desk.launch("doctor", "cloud", check=5)
    assert desk.launch("status").stdout == ""
