"""The verbs on Slurm: the same words, files and exit codes as on one machine."""

import json
import re
import shutil
import subprocess
import sys
import time

import pytest
from process_names import names_of
from runs import fingerprint_here, job_of, two_nodes

from launcher.cli.shipped import shipped

pytestmark = pytest.mark.nightly


@pytest.mark.daily
def test_a_run_over_two_nodes_ends_as_it_does_here(desk, slurm):
    run = desk.submit(two_nodes(desk), "--on", "slurm")
    status = desk.wait(run)
    assert (status["state"], status["exit_code"], status["cluster"]) == ("succeeded", 0, "slurm")
    assert [(node["host"], node["address"]) for node in status["nodes"]] == [
        (node.name, node.address) for node in slurm.nodes[:2]
    ]
    assert status["fingerprint"] == fingerprint_here(desk, 60)
    assert "rank 3" in desk.launch("logs", run).stdout or "1:3" in desk.launch("logs", run).stdout
    desk.until("the job's end", lambda: not slurm.ask("squeue", "--noheader").strip())
    assert job_of(desk, run) == status["job"]


@pytest.mark.daily
def test_a_job_has_the_same_processes_on_each_node(desk):
    run = desk.submit(two_nodes(desk, hold=2), "--on", "slurm")
    desk.until_step(run, 2)
    found = names_of(desk.processes())
    # The batch process, and on the second node what keeps its agent.
    assert (found["launch-super"], found["launch-agent"], found["launch-watchdog"], found["rank"]) == (2, 2, 2, 4)
    desk.let_go()
    assert desk.wait(run)["state"] == "succeeded"


def test_a_cancel_finds_the_job_of_a_run_whose_records_are_gone(desk, slurm):
    run = desk.submit(two_nodes(desk, 100_000, "recovery: {grace: 1s}\n"), "--on", "slurm")
    desk.until_step(run, 5)
    shutil.rmtree(desk.run_dir(run) / "attempts", ignore_errors=True)  # its processes may write meanwhile
    assert "ended job" in desk.launch("cancel", run).stdout
    desk.until("the job's end", lambda: not slurm.ask("squeue", "--noheader").strip())
    assert desk.processes() == []


@pytest.mark.daily
def test_a_job_that_waits_says_why_and_is_cancelled_without_having_run(desk, slurm):
    slurm.ask("sbatch", "--nodes=4", "--exclusive", "--output=/dev/null", "--wrap=sleep 600")
    desk.until("a full cluster", lambda: "RUNNING" in slurm.ask("squeue", "--noheader", "--format=%T"))
    run = desk.submit(two_nodes(desk), "--on", "slurm")
    status = desk.status(run)
    assert status["state"] == "queued" and "waiting for nodes" in status["message"], status
    assert "queued" in desk.launch("status").stdout
    desk.launch("cancel", run)
    assert desk.status(run)["state"] == "cancelled"
    assert [event["kind"] for event in desk.events(run)] == ["submitted", "ended"]
    assert run not in slurm.ask("squeue", "--noheader", "--format=%j")


def test_a_person_who_uses_scancel_has_cancelled_the_run(desk, slurm):
    run = desk.submit(two_nodes(desk, 100_000), "--on", "slurm")
    desk.until_step(run, 10)
    slurm.ask("scancel", job_of(desk, run))
    status = desk.wait(run, check=20)
    assert (status["state"], status["attempt"]) == ("cancelled", 1)
    assert "job was cancelled" in status["message"]


def test_resumed_here_and_back_on_slurm_it_ends_with_the_same_weights(desk):
    run = desk.submit(two_nodes(desk, 400, hold=399), "--on", "slurm")
    desk.until_step(run, 40)
    desk.launch("cancel", run)
    desk.launch("resume", run, "--on", "local")
    desk.until_step(run, 120)
    desk.launch("cancel", run)
    desk.let_go()
    desk.launch("resume", run, "--on", "slurm")
    status = desk.wait(run)
    assert (status["attempt"], status["cluster"]) == (3, "slurm")
    assert status["fingerprint"] == fingerprint_here(desk, 400)


@pytest.mark.daily
def test_what_slurm_refuses_leaves_nothing_behind(desk, slurm):
    spec = two_nodes(desk, more="slurm:\n  qos: 'no-such'\n  partition: main\n  constraint: nowhere\n")
    refused = desk.launch("submit", spec, "--on", "slurm", check=2)
    assert "Slurm refuses the job" in refused.stderr, refused.stderr
    assert desk.launch("status", check=0).stdout == ""
    assert [path.name for path in (desk.project / ".launch" / "runs").iterdir()] == [".code"]
    unknown = two_nodes(desk, more="slurm:\n  partition: nowhere\n")
    assert "nowhere" in desk.launch("submit", unknown, "--on", "slurm", check=2).stderr


def test_a_refusal_says_in_plain_words_what_to_do(desk, slurm):
    spec = two_nodes(desk)

    def refused(*changes):
        words = [word for change in changes for word in ("--set", change)]
        return desk.launch("submit", spec, "--on", "slurm", *words, check=2).stderr

    much = refused("resources.memory_gb=9000")
    assert "Slurm refuses the job: asks for more memory than a node has" in much, much
    assert "Slurm says: Memory specification can not be satisfied" in much and "set resources.memory_gb lower" in much
    assert "hint: set slurm.reservation" in refused("slurm.reservation=none")
    shown = desk.launch("submit", spec, "--on", "slurm", "--dry-run", "--set", "resources.memory_gb=9000").stdout
    assert "Slurm would refuse it: no node, or not enough of them, has all that it asks for" in shown, shown


@pytest.mark.daily
def test_the_dry_run_shows_the_script_and_what_slurm_says_of_it(desk, slurm):
    spec = two_nodes(desk, more="slurm:\n  partition: main\n  extra: {comment: nightly}\n")
    shown = desk.launch("submit", spec, "--on", "slurm", "--dry-run").stdout
    assert "#SBATCH --nodes=2" in shown and "#SBATCH --partition=main" in shown and " nightly" in shown
    assert "-m launcher.programs guard slurm" in shown
    assert f"Slurm could start it at {time.strftime('%Y-')}" in shown, shown
    too_many = desk.launch("submit", spec, "--on", "slurm", "--set", "resources.nodes=9", check=2).stderr
    assert "resources.nodes: asks for 9, but there are 4 nodes" in too_many
    desk.script("cpu.py", "print('no torch')\n")
    lone = desk.spec("name: lone\nrun:\n  script: cpu.py\nresources:\n  ranks_per_node: 1\n")
    shown = desk.launch("submit", lone, "--on", "slurm", "--dry-run")
    assert "--gres" not in shown.stdout and "no GPUs are asked for" in shown.stderr
    assert not (desk.project / ".launch").exists()


@pytest.mark.daily
def test_gpus_are_asked_for_and_ranks_see_them(desk):
    desk.script("gpus.py", "import os\nprint('sees', os.environ.get('CUDA_VISIBLE_DEVICES'), os.environ['LOCAL_RANK'])")
    spec = desk.spec("name: gpus\nrun:\n  script: gpus.py\nresources:\n  nodes: 2\n  gpus_per_node: 2\n")
    run = desk.submit(spec, "--on", "slurm")
    assert desk.wait(run)["world_size"] == 4
    logs = desk.rank_logs(run)
    assert [logs.count(f"sees 0,1 {local}") for local in (0, 1)] == [2, 2], logs
    three = desk.launch("submit", spec, "--on", "slurm", "--set", "resources.gpus_per_node=3", check=2)
    assert "no node there has more than 2" in three.stderr


HOSTS_NOW = """
import sys, msgspec
from launcher.places.kinds import of_kind
from launcher.spec.model import JobSpec, RunOptions
sys.stdout.buffer.write(msgspec.json.encode(of_kind("slurm").hosts_now(JobSpec("x", RunOptions()))))
"""


def test_a_board_is_told_which_gpus_are_taken_and_by_which_job(desk):
    one_each = ("--set", "resources.gpus_per_node=1", "--set", "resources.ranks_per_node=1")
    run = desk.submit(two_nodes(desk, hold=5), "--on", "slurm", *one_each)
    desk.until_step(run, 2)
    told = subprocess.run([sys.executable, "-c", HOSTS_NOW], env=desk.env, check=True, capture_output=True).stdout
    hosts = json.loads(told)
    assert [one["gpus"] for one in hosts] == [2] * 4
    taken = [one for one in hosts if one["jobs"]]
    assert [(one["state"], one["free_gpus"], one["jobs"]) for one in taken] == [("taken", 1, [job_of(desk, run)])] * 2
    assert {one["state"] for one in hosts if not one["jobs"]} == {"free"}
    desk.let_go()
    desk.wait(run)


@pytest.mark.daily
def test_runs_of_one_spec_are_one_array_and_each_knows_which_it_is(desk, slurm):
    desk.script("which.py", "import os\nprint('repeat', os.environ['LAUNCH_REPEAT'], os.environ['RANK'])")
    spec = desk.spec("name: which\nrun:\n  script: which.py\nresources:\n  ranks_per_node: 1\n")
    runs = desk.launch("submit", spec, "--on", "slurm", "--repeat", "5").stdout.split()
    assert len(set(runs)) == 5
    jobs = {job_of(desk, run) for run in runs}
    assert len({job.split("_")[0] for job in jobs}) == 1 and len(jobs) == 5
    for index, run in enumerate(runs):
        assert desk.wait(run)["state"] == "succeeded"
        assert f"repeat {index} 0" in desk.rank_logs(run)


def test_the_commands_of_the_page(desk):
    root = shipped("jobs").parent
    for name in ("jobs", "templates"):
        shutil.copytree(root / name, desk.project / name)
    page = (root / "launcher" / "docs" / "slurm.md").read_text()
    submit, status, dry = (line.removeprefix("$ launch ").split() for line in re.findall(r"^\$ .*", page, re.MULTILINE))
    run = desk.submit(*submit[1:], "--set", "run.args.max-steps=10", "--set", "resources.gpus_per_node=0")
    assert run in desk.launch(*status).stdout
    assert desk.wait(run)["step"] == 10
    assert "#SBATCH" in desk.launch(*dry).stdout
