"""Runs are taken away on the hosts of a pool too, and nothing of one that lives or that a silent host has is lost sight
of."""

import json
import os

import pytest

pytestmark = pytest.mark.nightly


@pytest.fixture
def over(desk):
    """A run on two hosts that has ended, its supervisors too."""
    run = desk.submit(desk.job(5), "--on", "pool")
    desk.wait(run)
    desk.until("the end of all its processes", lambda: not desk.left())
    return run


def trees(desk, index):
    return sorted((desk.hosts.home(index) / "launch" / "code").iterdir())


@pytest.mark.daily
def test_what_a_run_keeps_on_hosts_is_told_and_goes_with_it(desk, over):
    for index in (0, 1):
        for tree in trees(desk, index):
            os.utime(tree, (0, 0))  # nobody has used it lately
    (told,) = json.loads(desk.launch("du", over, "--json").stdout)
    assert sorted((one["on"], one["total"] > 1000, one["silent"]) for one in told["elsewhere"]) == [
        ("node0", True, ""),
        ("node1", True, ""),
    ]
    shown = desk.launch("du").stdout
    assert "node0" in shown
    assert "node0" not in desk.launch("du", "--here").stdout
    done = desk.launch("rm", over)
    assert done.stdout.startswith(f"{over} is gone, with ")
    assert " on node0" in done.stdout and " on node1" in done.stdout
    assert not any(desk.there(index, over).exists() for index in (0, 1))
    assert not trees(desk, 0) and not trees(desk, 1)
    desk.launch("status", over, check=3)


def test_many_are_taken_away_on_hosts_too(desk, over):
    shown = desk.launch("prune", "--state", "ended", "--dry-run").stdout
    assert shown.splitlines()[0].endswith("ELSEWHERE")
    assert " on node0, " in shown or " on node1, " in shown
    assert desk.there(0, over).exists()
    desk.launch("prune", "--state", "ended", "--yes")
    assert not any(desk.there(index, over).exists() for index in (0, 1))
    desk.launch("status", over, check=3)


def test_a_live_run_is_refused_and_so_is_one_of_which_a_process_lives(desk, over):
    run = desk.submit(desk.job(100_000), "--on", "pool")
    desk.until_step_there(0, run, 2)
    refused = desk.launch("rm", run, over, check=4).stderr
    assert f"{run} is running" in refused
    desk.launch("cancel", run)
    tag = f"LAUNCH_RUN_DIR=$HOME/launch/runs/{run}"
    pid = int(desk.hosts.ssh(1, f"{tag} setsid sleep 605 >/dev/null 2>&1 </dev/null & echo $!"))
    desk.until("its start", lambda: desk.own("sleep\x00605", 1))
    refused = desk.launch("rm", over, run, check=4).stderr
    assert f"node1: processes of {run} are there" in refused
    assert all(desk.there(index, one).exists() for index in (0, 1) for one in (run, over))
    desk.hosts.ssh(1, f"kill {pid}")
    desk.until("the end of it", lambda: not desk.own("sleep", 1))
    desk.launch("rm", over, run)


def test_a_silent_host_is_named_and_the_rest_goes_later(desk, over):
    desk.hosts.nodes[1].cut()
    done = desk.launch("rm", over, check=5)
    assert f"node1 was not asked: what it may keep of {over} stays there" in done.stderr
    assert f"hint: launch rm {over} again" in done.stderr
    assert not desk.there(0, over).exists()
    assert desk.status(over)["state"] == "succeeded"
    assert "? on node1" in desk.launch("prune", "--state", "ended", "--dry-run").stdout
    assert "node1 was not asked" in desk.launch("du").stderr
    desk.hosts.nodes[1].mend()
    assert " on node1" in desk.launch("rm", over).stdout
    assert not desk.there(1, over).exists()
    desk.launch("status", over, check=3)


def test_nobody_waits_for_a_host_that_is_gone_for_good(desk, over):
    desk.hosts.nodes[1].power_off()
    done = desk.launch("rm", over, "--anyway", check=5)
    assert done.stdout.startswith(f"{over} is gone, with ")
    assert "node1 was not asked" in done.stderr
    assert not desk.run_dir(over).exists()
