"""Runs on a real Grid Engine cluster: they wait, run on two nodes, lose nodes, and move."""

import contextlib
import json
import re
import shutil
from pathlib import Path

import pytest

pytestmark = pytest.mark.nightly

STEPS = 300
PE = "gridengine: {pe: launch}\n"
SHORT = "recovery:\n  lease: 4s\n  wait: 20s\n"


def two_nodes(desk, steps=STEPS, more="", hold=None):
    resources = "nodes: 2\nranks_per_node: 2\ngpus_per_node: 0\ncpus_per_rank: 1"
    return desk.chain(args=f"steps: {steps}", resources=resources, more=PE + more, hold=hold)


def fingerprint_here(desk, steps=STEPS):
    """Return the fingerprint of the undisturbed run on this machine."""
    return desk.fingerprint_of(two_nodes(desk, steps))


def handle_of(desk, run, attempt):
    return desk.run_dir(run) / "attempts" / f"{attempt:04d}" / "handle.json"


def job_of(desk, run, attempt=1):
    return json.loads(handle_of(desk, run, attempt).read_text())["job_id"]


def causes(desk, run):
    return [event["cause"] for event in desk.events(run, "failure")]


@pytest.mark.daily
def test_two_nodes_give_the_bytes_of_one_machine_and_secrets_are_not_shown(desk, grid):
    run = desk.submit(two_nodes(desk, 400, hold=399), "--on", "gridengine", env={"MY_TOKEN": "hush"})
    desk.until_step(run, 5)
    status = desk.status(run)
    assert len({node["host"] for node in status["nodes"]} & {"node0", "node1", "node2"}) == 2
    assert "hush" not in grid.ask("qstat", "-j", job_of(desk, run))
    desk.let_go()
    status = desk.wait(run)
    assert (status["state"], status["attempt"], status["generation"]) == ("succeeded", 1, 1)
    assert status["fingerprint"] == fingerprint_here(desk, 400)


@pytest.mark.daily
def test_a_run_that_waits_says_why_and_is_cancelled(desk, grid):
    run = desk.submit(two_nodes(desk), "--on", "gridengine", "--set", "resources.nodes=4")
    why = desk.until("a reason", lambda: "slots free" in desk.status(run)["message"] and desk.status(run))
    assert why["state"] == "queued"
    assert why["message"] == "the parallel environment launch has only 3 slots free for it"
    desk.launch("cancel", run)
    assert desk.status(run)["state"] == "cancelled"
    assert grid.ask("qstat", "-u", "root") == ""


def test_a_cancel_finds_the_job_of_a_run_whose_records_are_gone(desk, grid):
    run = desk.submit(two_nodes(desk, 100_000, "recovery: {grace: 1s}\n"), "--on", "gridengine")
    desk.until_step(run, 5)
    shutil.rmtree(desk.run_dir(run) / "attempts", ignore_errors=True)  # its processes may write meanwhile
    assert "ended job" in desk.launch("cancel", run).stdout
    desk.until("the end of its processes", lambda: not desk.processes())
    assert grid.ask("qstat", "-u", "root") == ""


def test_a_job_that_a_person_deletes_is_a_cancelled_run(desk, grid):
    run = desk.submit(two_nodes(desk, 100_000), "--on", "gridengine")
    desk.until_step(run, 5)
    grid.ask("qdel", job_of(desk, run))
    status = desk.wait(run, check=20)
    assert (status["state"], status["message"]) == ("cancelled", "its Grid Engine job was cancelled")


def test_at_each_time_limit_the_run_goes_on_in_a_new_job_or_of_one_host_in_the_same(desk, grid):
    more = "checkpoint: {every: 20 steps}\n"
    two = desk.submit(two_nodes(desk, 100_000, more), "--on", "gridengine", "--set", "resources.time=20s")
    one = ["--on", "gridengine", "--set", "resources.time=20s", "--set", "resources.nodes=1"]
    alone = desk.submit(two_nodes(desk, 100_000, more).replace(PE, ""), *one, "--set", "gridengine.pe=single")
    desk.until("third attempts", lambda: all(handle_of(desk, run, 3).exists() for run in (two, alone)))
    for run in (two, alone):  # one of them may be ahead
        assert set(causes(desk, run)) == {"time_limit"} and len(causes(desk, run)) >= 2
    assert job_of(desk, two, 1) != job_of(desk, two, 3)
    assert job_of(desk, alone, 1) == job_of(desk, alone, 3)
    desk.launch("cancel", two)
    desk.launch("cancel", alone)


def test_after_a_lost_node_the_run_ends_right_on_others(desk, grid):
    run = desk.submit(two_nodes(desk, STEPS, SHORT, hold=STEPS - 1), "--on", "gridengine")
    desk.until_step(run, 20)
    lost = desk.status(run)["nodes"][1]["host"]
    next(node for node in grid.nodes if node.name == lost).power_off()
    desk.let_go()
    status = desk.wait(run)
    assert (status["state"], status["attempt"], causes(desk, run)) == ("succeeded", 2, ["node_lost"])
    assert lost not in [node["host"] for node in status["nodes"]]
    assert status["fingerprint"] == fingerprint_here(desk)


def test_a_run_whose_only_host_is_lost_is_put_back_and_ends_right_on_another(new_desk, new_grid):
    one = ["--set", "resources.nodes=1", "--set", "gridengine.pe=single"]
    run = new_desk.submit(two_nodes(new_desk, hold=STEPS - 1), "--on", "gridengine", *one)
    new_desk.until_step(run, 20)
    lost = new_desk.status(run)["nodes"][0]["host"]
    next(node for node in new_grid.nodes if node.name == lost).power_off()
    new_desk.let_go()
    status = new_desk.wait(run)
    assert (status["state"], status["attempt"], causes(new_desk, run)) == ("succeeded", 2, ["node_lost"])
    assert lost not in [node["host"] for node in status["nodes"]]
    assert job_of(new_desk, run, 1) == job_of(new_desk, run, 2)
    assert (
        status["fingerprint"] == new_desk.wait(new_desk.submit("job.yaml", "--set", "resources.nodes=1"))["fingerprint"]
    )


def test_a_run_moves_from_here_to_grid_engine_and_on_to_slurm(desk, grid, slurm):
    more = "checkpoint: {every: 20 steps}\n"
    run = desk.submit(two_nodes(desk, 100_000, more))
    desk.until_step(run, 40)
    desk.launch("cancel", run)
    desk.launch("resume", run, "--on", "gridengine")
    moved = desk.until_step(run, 60)
    assert desk.status(run)["cluster"] == "gridengine"
    desk.launch("cancel", run)
    desk.env |= slurm.env
    desk.launch("resume", run, "--on", "slurm", "--set", "run.args.steps=400")
    status = desk.wait(run)
    assert (status["state"], status["cluster"], status["attempt"]) == ("succeeded", "slurm", 3)
    assert moved and status["fingerprint"] == fingerprint_here(desk, 400)


def test_a_silent_qmaster_is_no_end(desk, grid):
    run = desk.submit(two_nodes(desk, 100_000), "--on", "gridengine")
    desk.until_step(run, 5)
    grid.stop_master()
    page = desk.launch("status", run).stdout
    assert "running" in page
    desk.launch("cancel", run, check=None)  # by its folder
    desk.until("its end", lambda: desk.status(run)["state"] == "cancelled")


def test_the_doctor_knows_the_site(desk, grid):
    said = desk.launch("doctor", "gridengine").stdout
    assert "3 answer" in said and "for several nodes: launch" in said
    grid.stop_master()
    assert "does not answer" in desk.launch("doctor", "gridengine", check=5).stdout


def test_the_doctor_tries_two_hosts(desk, grid):
    found = json.loads(desk.launch("doctor", "gridengine", "--try", "--json").stdout)
    assert not [one for one in found if one["level"] == "problem"]
    said = {one["about"]: one["text"] for one in found}
    assert re.match(r"job [0-9]+ on node[0-2] and node[0-2], its first word [0-9.]+ s after qsub", said["trial"])
    assert "reach each other by the addresses that Grid Engine has" in said["network"]
    assert said["runs root"].split(": seen on ")[1].count("node") == 2
    assert not (desk.project / ".launch").exists()
    assert "launch-doctor" not in grid.run("qstat").stdout


def test_the_doctor_tries_a_folder_with_a_name_that_a_shell_would_misread(desk, grid, tmp_path):
    runs = tmp_path / 'it\'s "$(touch canary)"; touch canary'
    runs.mkdir()
    done = desk.launch("doctor", "gridengine", "--try", "--nodes", "2", env={"LAUNCH_RUNS": str(runs)})
    assert ": seen on node" in done.stdout
    assert list(runs.iterdir()) == [] and not list(tmp_path.rglob("canary"))


def test_the_doctor_says_on_which_host_it_does_not_find_the_runs(desk, grid):
    """Of three hosts two are without, and two are asked: one of them at least is."""
    with contextlib.ExitStack() as stack:
        for node in grid.nodes[1:]:
            assert node.exec("mount", "-t", "tmpfs", "none", str(desk.project), cwd=Path("/")).returncode == 0
            stack.callback(node.exec, "umount", str(desk.project), cwd=Path("/"))
        done = desk.launch("doctor", "gridengine", "--try", check=4)
    assert f"{desk.project}/.launch/runs is not the same folder on node" in done.stdout
