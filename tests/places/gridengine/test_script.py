"""The batch script: which of a spec becomes an option of qsub; and nothing of it becomes shell."""

import json
import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from launcher.errors import BadInput
from launcher.places.batch import environment
from launcher.places.batch.batch import SubmitToken
from launcher.places.gridengine.gridengine import check_rule, script_of
from launcher.plan.build import build
from launcher.plan.facts import Machine, Project, RunIdentity
from launcher.plan.model import FrozenCode
from launcher.spec.read import read_spec

RUN = Path("/runs/train-7k3f")
HEAD = "name: train\nrun:\n  script: train.py\n"
NODE = Machine(8, ("0", "1", "2", "3"), apart=True, limit_per_job=True)


def lines(folder, body="", *, rule="1", where=RUN, avoid=(), run_id="train-7k3f"):
    (folder / "job.yaml").write_text(HEAD + body)
    place = RunIdentity(run_id, str(where), "gridengine", "gridengine", "/p/job.yaml", 12.0)
    project = Project("/p", {"train.py"}, set(), module_found=True)
    plan = build(read_spec(folder / "job.yaml", ()), (), place, NODE, project, FrozenCode("d", 1, 10), sys.executable)
    return script_of(plan, SubmitToken("c0ffee"), where, avoid, rule).splitlines()


def test_two_hosts(tmp_path):
    body = (
        "resources: {nodes: 2, gpus_per_node: 4, time: 1h}\n"
        "gridengine: {pe: launch, queue: gpu.q, project: p1, extra: {l: 'mem_free=4G', m: ea}, exclude: n7}\n"
    )
    (
        first,
        *options,
        command,
    ) = lines(tmp_path, body, avoid=["n9"])
    assert first == "#!/bin/sh"
    assert options == [
        "#$ -m ea", "#$ -S /bin/sh", "#$ -N train-7k3f", "#$ -j y", "#$ -o /runs/train-7k3f/gridengine-$JOB_ID.out",
        "#$ -r y", "#$ -notify", "#$ -ac launch=c0ffee", "#$ -pe launch 2", "#$ -q gpu.q", "#$ -P p1",
        "#$ -l h_rt=3600,gpu=4,hostname=!(n7|n9),mem_free=4G",
    ]  # fmt: skip
    words = shlex.split(command)
    assert words[:6] == ["exec", sys.executable, "-P", "-m", "launcher.programs", "environment"]
    assert words[6:8] == ["--warn-after", "3480"]
    assert words[8:] == [
        sys.executable,
        "-P",
        "-m",
        "launcher.supervisor",
        "launcher.places.batch.job.batch_process:BatchSupervisor",
        str(RUN),
        "gridengine",
    ]


def test_a_short_job_is_warned_all_the_same(tmp_path):
    assert " --warn-after 1 " in lines(tmp_path, "resources: {gpus_per_node: 0, time: 5s}\n", rule=None)[-1]


def test_slots_follow_the_allocation_rule(tmp_path):
    body = "resources: {nodes: 2..3, gpus_per_node: 0}\ngridengine: {pe: mpi}\n"
    assert "#$ -pe mpi 32-48" in lines(tmp_path, body, rule="16")
    body = "resources: {gpus_per_node: 0, ranks_per_node: 4, cpus_per_rank: 2}\ngridengine: {pe: smp}\n"
    assert "#$ -pe smp 8" in lines(tmp_path, body, rule="$pe_slots")
    assert not [line for line in lines(tmp_path, "resources: {gpus_per_node: 0}\n", rule=None) if "-pe" in line]


def test_gpus_are_asked_for_by_the_slot(tmp_path):
    body = "resources: {nodes: 2, gpus_per_node: 4}\ngridengine: {pe: mpi, gpu_resource: cuda}\n"
    assert "#$ -l cuda=2" in lines(tmp_path, body, rule="2")
    with pytest.raises(BadInput, match="4 GPUs on a host cannot be asked for in 3 equal parts"):
        lines(tmp_path, body, rule="3")


@pytest.mark.parametrize(
    ("pe", "rule", "nodes", "why"),
    [
        (None, None, 2, "2 nodes need a parallel environment"),
        ("gone", None, 2, "no parallel environment gone"),
        ("smp", "$pe_slots", 2, "on one host alone"),
        ("mpi", "$fill_up", 2, "wherever some are free"),
        ("mpi", "$round_robin", 1, "wherever some are free"),
    ],
)
def test_a_parallel_environment_must_give_so_many_hosts(pe, rule, nodes, why):
    with pytest.raises(BadInput, match=why):
        check_rule(pe, rule, nodes)


def test_those_that_do_are_fine():
    for pe, rule, nodes in ((None, None, 1), ("launch", "1", 3), ("mpi", "16", 2), ("smp", "$pe_slots", 1)):
        check_rule(pe, rule, nodes)


def test_odd_folders_and_names(tmp_path):
    odd = Path("/runs/a b,c:d$(touch x)'")
    found = lines(tmp_path, "resources: {gpus_per_node: 0}\n", rule=None, where=odd, run_id="7b-x")
    assert "#$ -o /dev/null" in found and "#$ -N run-7b-x" in found  # a job's name begins with a letter
    assert shlex.split(found[-1])[-2] == str(odd)


@pytest.mark.parametrize(
    "extra", ["{pe: mpi 2}", "{V: true}", "{o: /etc/x}", "{'l\\n': x}", '{l: "a\'b"}', "{A: '$HOME'}"]
)
def test_what_the_launcher_writes_cannot_be_written_twice(tmp_path, extra):
    with pytest.raises(BadInput, match="gridengine"):
        lines(tmp_path, f"gridengine: {{extra: {extra}}}\n")


def test_of_the_job_that_a_submitter_is_in_nothing_is_kept(tmp_path):
    file = tmp_path / "job.environment"
    kept = {"PATH": "/bin", "SGE_ROOT": "/opt/sge", "SGE_CELL": "default"}
    names = ("PE", "PE_HOSTFILE", "JOB_ID", "NSLOTS", "SGE_TASK_ID", "SGE_HGR_gpu", environment.FILE, environment.HOST)
    environment.save(file, kept | dict.fromkeys(names, "x"))
    assert json.loads(file.read_bytes()) == kept


def test_a_command_has_the_users_environment_and_the_jobs(tmp_path):
    file = tmp_path / "job.environment"
    environment.save(file, {"PATH": "/mine:/usr/bin:/bin", "TOKEN": "a'b\n", "JOB_ID": "7", "PYTHONPATH": "/x"})
    assert file.stat().st_mode & 0o077 == 0
    show = [sys.executable, "-c", "import json, os, sys; print(json.dumps([dict(os.environ), sys.argv[1:]]))"]
    words = environment.packed(str(file), "node1", [*show, "it's", "$HOME", "a b"])
    said = subprocess.run(words, env={"PATH": "/usr/bin", "JOB_ID": "12"}, capture_output=True, text=True, check=True)
    seen, argv = json.loads(said.stdout)
    assert (seen["PATH"], seen["TOKEN"], seen["JOB_ID"]) == ("/mine:/usr/bin:/bin", "a'b\n", "12")
    assert seen[environment.HOST] == "node1" and argv == ["it's", "$HOME", "a b"]
    plain = subprocess.run(
        [*environment.WITH_IT, *show],
        env={**os.environ, environment.FILE: str(file)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert environment.HOST not in json.loads(plain.stdout)[0]


def test_what_a_run_waits_for_is_said_in_grid_engines_words(tmp_path):
    found = lines(tmp_path, "queue: {hold: true, at: 2027-01-31 22:00, priority: -10}\n")
    assert {"#$ -h", "#$ -a 202701312200.00", "#$ -p -10"} <= {*found}
    assert not any(line.startswith(("#$ -h ", "#$ -a ", "#$ -p ")) or line == "#$ -h" for line in lines(tmp_path))
