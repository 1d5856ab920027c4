"""`launch doctor slurm` on a real cluster: well, and with whatever may be wrong with it."""

import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from lab import BOUND_S
from runs import jobs

from tests.lab.nodes import Cut

pytestmark = pytest.mark.nightly

TORCH = "2.10.0 (CUDA 12.8), sees 0 GPUs"


@pytest.fixture
def doctor(desk):
    """Return the doctor's findings by subject: a list of level and text for each."""
    python = desk.project / ".venv" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.write_text('#!/bin/sh\necho \'["2.10.0", "CUDA 12.8", 0]\'\n')
    python.chmod(0o755)
    desk.env.pop("VIRTUAL_ENV", None)

    def doctor(*words, check=0, **more):
        done = desk.launch("doctor", "slurm", "--json", *words, check=check, **more)
        found: dict[str, list[tuple[str, str]]] = {}
        for one in json.loads(done.stdout):
            found.setdefault(one["about"], []).append((one["level"], one["text"]))
            assert one["level"] == "ok" or one["hint"], one
        return found

    return doctor


def problems(found):
    return {about: [text for level, text in said if level == "problem"] for about, said in found.items()}


def assert_nothing_is_left(desk, slurm, jobs_before=()):
    assert not (desk.project / ".launch").exists()
    assert not list(desk.project.glob(".tmp*"))
    assert jobs(slurm) == list(jobs_before)


# The site


def test_a_cluster_that_is_well(desk, slurm, doctor):
    said = desk.launch("doctor", "slurm")
    lines = said.stdout.splitlines()
    assert lines[0].startswith("ok       sbatch         2")
    assert lines[3].split()[:4] == ["PARTITION", "STATE", "IDLE", "NODES"] and lines[3].endswith("PREEMPTED")
    table = {line.split()[0]: line.split()[1:] for line in lines[4:9]}
    assert table["main*"] == ["up", "4", "4", "8", "8", "GB", "2", "none", "requeue"]
    assert table["graceful"][-5:] == ["none", "requeue", "after", "10", "s"]
    assert table["minute"][7:] == ["1", "min", "requeue"]
    assert (table["cancelled"][-1], table["urgent"][-1]) == ("cancel", "never")
    found = doctor()
    assert not any(problems(found).values())
    assert "answers in" in found["controller"][0][1] and "on control" in found["controller"][0][1]
    assert found["nodes"] == [("ok", "all 4 of main take jobs")]
    assert found["start"] == [("ok", "a job of one node could start now")]
    assert found["KillWait"][0][0] == "warning" and "ranks get 5 s" in found["KillWait"][0][1]
    assert found["SlurmdTimeout"][0][0] == "warning" and "10 s" in found["SlurmdTimeout"][0][1]
    assert found["accounting"][0][0] == "warning" and "off" in found["accounting"][0][1]
    assert_nothing_is_left(desk, slurm)


def test_a_cluster_with_accounting(accounted_desk):
    done = accounted_desk.launch("doctor", "slurm")
    assert "ok       accounting     on, and sacct answers" in done.stdout


@contextlib.contextmanager
def well_again(desk, slurm):
    """Afterwards the controller answers."""
    try:
        yield
    finally:
        if "slurmctld" not in slurm.control.running():
            slurm.start_controller()
        slurm.thaw_controller()
        desk.until("the controller", lambda: slurm.run("scancel", "--user=root").returncode == 0)


@pytest.mark.parametrize("fault", ["stop_controller", "freeze_controller"])
def test_a_controller_that_does_not_answer(desk, slurm, doctor, fault):
    getattr(slurm, fault)()
    with well_again(desk, slurm):
        found = doctor("--try", check=5)
    ((level, text),) = found["controller"]
    assert level == "problem" and "the Slurm controller does not answer" in text
    assert found["sbatch"][0][0] == "ok" and "partitions" not in found and "trial" not in found


def test_a_node_that_is_down(slurm, doctor):
    slurm.nodes[3].power_off()  # one that is there comes back by itself: ReturnToService=2
    slurm.ask("scontrol", "update", "NodeName=node3", "State=DOWN", "Reason=a fan")
    ((level, text),) = doctor()["nodes"]
    assert level == "warning" and text.startswith("1 of 4 of main take no jobs: node3 (down"), text
    assert text.endswith(": a fan)")
    slurm.ask("scontrol", "update", "NodeName=node[0-2]", "State=DRAIN", "Reason=works")
    found = doctor(check=4)
    assert "4 of 4 of main take no jobs" in problems(found)["nodes"][0]


def test_a_job_that_slurm_refuses(desk, slurm, doctor):
    slurm.ask("scontrol", "update", "PartitionName=minute", "State=DRAIN")
    try:
        found = problems(doctor("--partition", "minute", "--try", check=4))
    finally:
        slurm.ask("scontrol", "update", "PartitionName=minute", "State=UP")
    why = "Required partition not available (inactive or drain)"
    assert found["partition"] == ["minute is drain"]
    assert found["start"] == [f"Slurm would refuse a job of one node: {why}"]
    assert why in found["trial"][0]
    assert_nothing_is_left(desk, slurm)


# Its nodes


@pytest.mark.daily
def test_two_nodes_that_are_well(desk, slurm, doctor):
    found = doctor("--try", "--interface", "eth0")
    assert not any(problems(found).values())
    ((_, text),) = found["trial"]
    assert " on node0 and node1, its first word " in text
    assert found["torch"] == [("ok", f"{TORCH} in {desk.project}/.venv/bin/python on node0 and node1")]
    assert found["python"][0][1].endswith(" on node0 and node1")
    assert [level for level, _ in found["clock"]] == ["ok", "ok"]
    by_slurm, by_eth0 = (text for _, text in found["network"])
    addresses = ", ".join(node.address for node in slurm.nodes[:2])
    assert by_slurm.startswith(f"node0 and node1 reach each other by the addresses that Slurm has ({addresses})")
    assert by_eth0.startswith(f"node0 and node1 reach each other by eth0 ({addresses})")
    assert [level for level, _ in found["requeue"]] == ["ok", "ok"]
    for about in ("runs root", "programs"):  # a disk of this machine, and seen all the same
        ((level, text),) = found[about]
        assert level == "ok" and text.endswith(": seen on node0 and node1")
    assert_nothing_is_left(desk, slurm)


def test_a_folder_with_a_name_that_a_shell_would_misread(desk, slurm, doctor, tmp_path):
    runs = tmp_path / 'it\'s "$(touch canary)"; touch canary'
    runs.mkdir()
    found = doctor("--try", env={"LAUNCH_RUNS": str(runs)})
    assert found["runs root"][0][1].endswith("seen on node0 and node1")
    assert list(runs.iterdir()) == [] and not list(tmp_path.rglob("canary"))


def test_no_node_is_free(desk, slurm, doctor):
    other = fill(desk, slurm)
    done = desk.launch("doctor", "slurm", "--try", "--within", "6")
    assert "warning  trial          no node was free within 6 s; job " in done.stdout
    assert "was cancelled: waiting for nodes to become free" in done.stdout
    assert "is pending: waiting for nodes to become free" in done.stderr
    assert_nothing_is_left(desk, slurm, [other])


@contextlib.contextmanager
def hidden(node, path):
    """An empty folder in its place, on this node alone."""
    assert node.exec("mount", "-t", "tmpfs", "none", str(path), cwd=Path("/")).returncode == 0
    try:
        yield
    finally:
        assert node.exec("umount", str(path), cwd=Path("/")).returncode == 0


@pytest.mark.parametrize("index", [0, 1])
def test_a_node_that_does_not_see_the_runs(desk, slurm, doctor, index):
    with hidden(slurm.nodes[index], desk.project):
        found = doctor("--try", check=4)
    wrong = {about: said for about, said in problems(found).items() if said}
    assert wrong == {"runs root": [f"{desk.project}/.launch/runs is not the same folder on node{index}"]}
    assert found["runs root"][-1][0] == "warning"
    assert_nothing_is_left(desk, slurm)


def test_a_node_that_may_not_write(desk, slurm, doctor):
    node, place = slurm.nodes[1], str(desk.project)
    assert node.exec("mount", "--bind", place, place, cwd=Path("/")).returncode == 0
    assert node.exec("mount", "-o", "remount,bind,ro", place, cwd=Path("/")).returncode == 0
    try:
        found = problems(doctor("--try", check=4))
    finally:
        assert node.exec("umount", place, cwd=Path("/")).returncode == 0
    assert found["runs root"] == [f"{desk.project}/.launch/runs cannot be written on node1"]
    assert_nothing_is_left(desk, slurm)


@pytest.mark.daily
def test_a_node_without_python(desk, slurm, doctor):
    with hidden(slurm.nodes[1], sys.prefix):
        found = problems(doctor("--try", check=4))
    assert found["python"] == [f"{sys.executable} is not there on node1"]
    assert not found.get("network")
    assert_nothing_is_left(desk, slurm)


def firewall(node, rule):
    """Undone when all of its cuts are."""
    rules = f"table inet cut {{ chain input {{ type filter hook input priority 0; {rule}; }}; }}"
    assert node.exec("nft", rules).returncode == 0


def test_a_firewall_between_nodes(desk, slurm, doctor):
    peer, node = slurm.nodes[0].address, slurm.nodes[1]
    used = f"tcp dport != {{ {slurm.port}-{slurm.port + 2} }} tcp dport 20000-32000"
    firewall(node, f"ip saddr {peer} {used} reject with tcp reset")
    (text,) = problems(doctor("--try", check=4))["network"]
    unreached = f"node0 does not reach node1 by the addresses that Slurm has ({node.address} port "
    assert text.startswith(unreached) and text.endswith("): Connection refused")
    assert_nothing_is_left(desk, slurm)


def test_a_node_that_srun_does_not_reach(desk, slurm, doctor):
    slurm.nodes[1].cut(Cut.RESET, [slurm.nodes[0]])
    (text,) = problems(doctor("--try", check=4))["srun"]
    assert "node1" in text and "connection failure" in text.lower()
    assert_nothing_is_left(desk, slurm)


def test_nodes_that_have_just_died(desk, slurm, doctor, tmp_path):
    """At the moment when the job is submitted: Slurm still calls them idle, and starts it there."""
    sbatch, first_processes = tmp_path / "programs" / "sbatch", " ".join(str(node.pid) for node in slurm.nodes)
    sbatch.parent.mkdir()
    dies = f'[ "$1" = --parsable ] && kill -9 {first_processes}'
    sbatch.write_text(f'#!/bin/sh\n{dies}\nexec {shutil.which("sbatch")} "$@"\n')
    sbatch.chmod(0o755)
    found = problems(doctor("--try", check=4, env={"PATH": f"{sbatch.parent}:{os.environ['PATH']}"}))
    assert not any(node.up for node in slurm.nodes)
    (text,) = found["trial"]
    assert "put it back" in text or "no word came from" in text or "before it said a word" in text
    assert not (desk.project / ".launch").exists()


def test_a_controller_that_dies_meanwhile(desk, slurm, doctor):
    fill(desk, slurm)
    with well_again(desk, slurm), asking(desk, "--within", "60") as process:
        job = own_job(process)
        slurm.save_state()  # else the next test's job gets a number again, and is ended for the one before
        slurm.stop_controller()
        out, _ = process.communicate(timeout=BOUND_S)
    assert process.returncode == 5
    assert "the Slurm controller does not answer" in out and f"job {job} may still wait or run: scancel {job}" in out
    assert not (desk.project / ".launch").exists()


def test_whoever_has_had_enough_leaves_nothing(desk, slurm, doctor):
    other = fill(desk, slurm)
    with asking(desk, "--within", "60") as process:
        own_job(process)
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=BOUND_S)
    assert process.returncode == 130
    assert_nothing_is_left(desk, slurm, [other])


def fill(desk, slurm):
    """A job that has all nodes: until it has, another one would be let in before it."""
    job = slurm.ask("sbatch", "--parsable", "--nodes=4", "--exclusive", "--output=/dev/null", "--wrap=sleep 600")
    desk.until("a full cluster", lambda: slurm.ask("squeue", "--noheader", "--format=%T", "--jobs", job) == "RUNNING")
    return job


@contextlib.contextmanager
def asking(desk, *words):
    """The command while it runs."""
    command = [sys.executable, "-m", "launcher.cli.main", "doctor", "slurm", "--try", *words]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, cwd=desk.project, env=desk.env, stdout=pipe, stderr=pipe, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


def own_job(process):
    """Once it knows that itself: Slurm shows a job before sbatch has an answer."""
    said = []
    for line in process.stderr:
        said.append(line)
        if found := re.search(r"job (\d+) is pending", line):
            return found[1]
    raise AssertionError(said)
