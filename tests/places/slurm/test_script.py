"""The batch script: what of a spec becomes an option of sbatch, word for word; and nothing of it becomes shell."""

import shlex
import sys
from pathlib import Path

import msgspec
import pytest
from msgspec.structs import replace

from launcher.places.batch.batch import SubmitToken, batch_command
from launcher.places.slurm.script import gres_of, options, render, script_of, signal_before_s
from launcher.plan.build import build
from launcher.plan.facts import Machine, Project, RunIdentity
from launcher.plan.model import FrozenCode
from launcher.plan.on_hosts import most_of_a_host
from launcher.plan.queueing import begun
from launcher.plan.roles import build_roles
from launcher.spec.read import parse_spec, read_spec

RUN = Path("/runs/train-7k3f")
PYTHON = sys.executable
HEAD = "name: train\nrun:\n  script: train.py\n"
NODE = Machine(32, ("0", "1", "2", "3"), apart=True)
MARK = SubmitToken("c0ffee")


def plan_of(folder, body="", machine=NODE, run_dir=RUN):
    (folder / "job.yaml").write_text(HEAD + body)
    place = RunIdentity("train-7k3f", str(run_dir), "slurm", "slurm", "/p/job.yaml", 12.0)
    project = Project("/p", {"train.py"}, set(), module_found=True)
    return build(read_spec(folder / "job.yaml", ()), (), place, machine, project, FrozenCode("d", 1, 10), PYTHON)


def with_extra(plan, extra):
    spec = replace(plan.spec, slurm=replace(plan.spec.slurm, extra=extra))
    return msgspec.structs.replace(plan, spec=spec)


def script(folder, body="", submit_token=MARK, where=RUN, avoid=(), **more):
    return script_of(plan_of(folder, body, run_dir=where, **more), submit_token, where, avoid)


def written(text):
    """The options of a script, as sbatch takes them."""
    lines = [line.removeprefix("#SBATCH --") for line in text.splitlines() if line.startswith("#SBATCH")]
    words = [shlex.split(line)[0].partition("=") for line in lines]
    return {name: value if equals else True for name, equals, value in words}


def test_a_site_that_expedites_is_asked_to_and_its_job_never_fails(tmp_path):
    """Slurm puts an expedited job whose script fails back and holds it: a failed run would leave one in the queue."""
    text = script_of(plan_of(tmp_path), MARK, RUN, (), expedites=True)
    assert written(text)["requeue"] == "expedite"
    assert text.rstrip().endswith(f"launcher.programs guard slurm {RUN} ends-with-0")
    assert written(script(tmp_path))["requeue"] is True


PROGRAMS = """\
name: three
roles:
  learner: {main: true, run: {script: train.py}, resources: {ranks_per_node: 2, cpus_per_rank: 3, memory_gb: 2}}
  actors: {run: {script: train.py}, resources: {nodes: 2, gpus_per_node: 1, cpus_per_rank: 4, memory_gb: 1}}
  reward: {run: {script: train.py}, resources: {gpus_per_node: 1, cpus_per_rank: 2}, colocate: actors}
slurm: {partition: gpu}
"""


def programs(*changes):
    job = parse_spec(PROGRAMS, "job.yaml", changes)
    place = RunIdentity("train-7k3f", str(RUN), "slurm", "slurm", "/p/job.yaml", 12.0)
    project = Project("/p", {"train.py"}, set(), module_found=True)
    return build_roles(job, (), place, NODE, dict.fromkeys(job.roles, project), FrozenCode("d", 1, 10), PYTHON)


def test_roles_that_need_other_nodes_are_components_of_one_job():
    first, second = script_of(programs(), MARK, RUN, ("node7",)).split("#SBATCH hetjob\n")
    assert written(first) == {
        **COMMON, "comment": "launch:c0ffee", "partition": "gpu", "exclude": "node7", "signal": "B:USR1@120",
        "nodes": "1", "ntasks-per-node": "1", "cpus-per-task": "6", "mem": "2000M",
    }  # fmt: skip
    assert written(second) == {
        "job-name": "train-7k3f", "partition": "gpu", "exclude": "node7",
        "nodes": "2", "ntasks-per-node": "1", "cpus-per-task": "6", "mem": "1000M", "gres": "gpu:2",
    }  # fmt: skip
    assert second.count("launcher.programs guard slurm") == 1


THE_SAME = ("roles.learner.resources.gpus_per_node=2", "roles.actors.resources.memory_gb=2")


@pytest.mark.parametrize(
    ("changes", "array"), [(THE_SAME, None), (("slurm.nodelist=[node1, node2, node3]",), None), ((), 4)]
)
def test_else_all_nodes_get_the_most_that_one_of_them_needs(changes, array):
    """If all need the same, if the spec names nodes, and in an array, of which Slurm has none with components."""
    text = script_of(programs(*changes), SubmitToken("c0ffee", array=array), RUN, ())
    assert "hetjob" not in text
    chosen = written(text)
    asked = [chosen[name] for name in ("nodes", "cpus-per-task", "gres", "mem")]
    assert asked == ["3", "6", "gpu:2", "2000M"]
    assert "no-kill" not in chosen, "with a lost node all of it is to start again"


GOLDEN = f"""\
#!/bin/bash

# Parameters
#SBATCH --chdir=/
#SBATCH --comment=launch:c0ffee
#SBATCH --cpus-per-task=1
#SBATCH --job-name=train-7k3f
#SBATCH --nodes=1
#SBATCH --ntasks-per-node=1
#SBATCH --open-mode=append
#SBATCH --output=/runs/train-7k3f/slurm-%j.out
#SBATCH --requeue
#SBATCH --signal=B:USR1@120

# command
export SUBMITIT_EXECUTOR=slurm
trap '' USR1 USR2
exec {PYTHON} -P -m launcher.programs guard slurm /runs/train-7k3f
"""


def test_golden(tmp_path):
    assert script(tmp_path, "resources:\n  gpus_per_node: 0\n") == GOLDEN


COMMON = {
    "chdir": "/",
    "job-name": "train-7k3f",
    "open-mode": "append",
    "output": "/runs/train-7k3f/slurm-%j.out",
    "requeue": True,
}
ASKED = {
    "GPUs": (
        """resources:
  nodes: 2
  gpus_per_node: 2
  memory_gb: 1.5
  time: 90s
""",
        {
            "comment": "launch:c0ffee",
            "cpus-per-task": "16",
            "gres": "gpu:2",
            "mem": "1500M",
            "nodes": "2",
            "ntasks-per-node": "1",
            "signal": "B:USR1@45",
            "time": "2",
        },
    ),
    "a range and spares": (
        """
resources:
  nodes: 2..4
  gpus_per_node: 0
  ranks_per_node: 3
  cpus_per_rank: 2
recovery:
  spares: 1
""",
        {"comment": "launch:c0ffee", "cpus-per-task": "6", "no-kill": True, "nodes": "2-5", "signal": "B:USR1@120"},
    ),
    "every option": (
        """
resources:
  nodes: 1
  gpus_per_node: 4
  time: 2d
slurm:
  partition: gpu,long
  account: my_project
  qos: high
  constraint: a100&nvlink|h100
  reservation: days
  nodelist: [gpu01, gpu02]
  exclude: [gpu07, 'gpu[08-09]']
  gres: gpu:a100:4,nvme:1
  mail_user: me@example.org
  mail_type: [END, FAIL]
  signal_before: 5m
  interface: ib0
  extra:
    exclusive: true
    comment: nightly run
    licenses: matlab:1
    switches: '1@00:10:00'
""",
        {
            "account": "my_project",
            "comment": "launch:c0ffee nightly run",
            "constraint": "a100&nvlink|h100",
            "cpus-per-task": "32",
            "exclude": "gpu07,gpu[08-09]",
            "exclusive": True,
            "gres": "gpu:a100:4,nvme:1",
            "licenses": "matlab:1",
            "mail-type": "END,FAIL",
            "mail-user": "me@example.org",
            "nodelist": "gpu01,gpu02",
            "nodes": "1",
            "ntasks-per-node": "1",
            "partition": "gpu,long",
            "qos": "high",
            "reservation": "days",
            "signal": "B:USR1@300",
            "switches": "1@00:10:00",
            "time": "2880",
        },
    ),
}


@pytest.mark.parametrize("name", ASKED)
def test_what_the_spec_asks_for_becomes_an_option_and_the_command_stays(tmp_path, name):
    body, wanted = ASKED[name]
    found = script(tmp_path, body)
    assert written(found) == COMMON | wanted
    assert found.partition("# command")[2] == GOLDEN.partition("# command")[2]


def test_an_array_is_named_by_the_spec_and_writes_one_file_for_each_run(tmp_path):
    alone, several = (script(tmp_path, submit_token=SubmitToken("c0ffee", size)) for size in (None, 5))
    changed = dict(written(several).items() - written(alone).items())
    assert changed == {"array": "0-4", "job-name": "train", "output": "/runs/train-7k3f/slurm-%A_%a.out"}


@pytest.mark.parametrize(
    "image", ["nvcr.io#nvidia/pytorch:24.05", "/images/x.sif", "apptainer exec --nv /images/x.sif"]
)
def test_a_container_is_no_matter_of_the_script(tmp_path, image):
    """The batch process itself runs outside: it must speak to Slurm."""
    assert script(tmp_path, f"slurm:\n  container: '{image}'\n") == script(tmp_path)


def test_hosts_to_avoid_join_those_of_the_spec_once(tmp_path):
    body = "slurm:\n  exclude: [gpu07]\n"
    assert written(script(tmp_path, body, avoid=["gpu09", "gpu07"]))["exclude"] == "gpu07,gpu09"


def test_what_the_spec_insists_on_is_not_avoided(tmp_path):
    """Slurm refuses a job that is to have a node and not to have it, so that the run could not go on at all."""
    body = "slurm:\n  nodelist: ['gpu[01-03,07]', login1]\n"
    made = written(script(tmp_path, body, avoid=["gpu02", "gpu04", "login1"]))
    assert (made["nodelist"], made["exclude"]) == ("gpu[01-03,07],login1", "gpu04")
    assert "exclude" not in written(script(tmp_path, body, avoid=["gpu07"]))


@pytest.mark.parametrize(
    ("more", "expected"),
    [
        ("", 120),
        ("resources:\n  time: 1m\n", 30),  # the default: not in the first half of a short job
        ("resources:\n  time: 10s\n", 10),  # and not later than ten seconds before the end
        ("resources:\n  time: 1h\nslurm:\n  signal_before: 5m\n", 300),
        ("resources:\n  time: 1h\nslurm:\n  signal_before: 1s\n", 10),
        ("resources:\n  time: 1h\nslurm:\n  signal_before: 50m\n", 1800),
        ("slurm:\n  signal_before: 5m\n", 300),
    ],
)
def test_how_long_before_the_limit_a_run_is_told(tmp_path, more, expected):
    assert signal_before_s(plan_of(tmp_path, more)) == expected


def test_the_specs_own_gres_is_asked_for_instead_of_its_gpus(tmp_path):
    for more, gres in (
        ("resources:\n  gpus_per_node: 2\n", "gpu:2"),
        ("resources:\n  gpus_per_node: 2\nslurm:\n  gres: shard:1\n", "shard:1"),
        ("resources:\n  gpus_per_node: 0\n", None),
    ):
        plan = plan_of(tmp_path, more)
        assert gres_of(plan, most_of_a_host(plan)) == gres


def test_nobody_else_sets_what_the_launcher_writes(tmp_path):
    """Whatever got into a plan by another way than the spec's own checks."""
    plan = plan_of(tmp_path)
    other = with_extra(plan, {"output": "/etc/passwd", "job-name": "x", "requeue": "no", "chdir": "/tmp"})
    assert render(options(other, MARK, "/o"), "exec true") == render(options(plan, MARK, "/o"), "exec true")


@pytest.mark.parametrize("sign", ["\n", "\r", "\0"])
def test_a_value_of_several_lines_is_never_written(tmp_path, sign):
    plan = with_extra(plan_of(tmp_path), {"comment": f"x{sign}touch canary"})
    with pytest.raises(ValueError, match="--comment: expected one line"):
        options(plan, MARK, "/o")


@pytest.mark.parametrize("name", ["with spaces", "q'uo\"te", "$(touch canary)", "`x`;y", "#x", "é漢字", "a\\b", "a\nb"])
def test_the_command_survives_any_folder(name):
    assert shlex.split(batch_command("slurm", Path(f"/runs/{name}")))[-2] == f"/runs/{name}"


def test_a_percent_sign_of_a_folder_is_no_pattern(tmp_path):
    assert written(script(tmp_path, where=Path("/r/%j%x/t")))["output"] == "/r/%%j%%x/t/slurm-%j.out"


@pytest.mark.parametrize("name", ["a\\b", "a\nb", "a\rb"])
def test_where_slurm_cannot_write_the_batch_processes_words_are_dropped(tmp_path, name):
    text = script(tmp_path, where=Path("/r") / name)
    assert "#SBATCH --output=/dev/null\n" in text
    assert all(
        line.startswith(("#!", "#SBATCH --", "# ")) or not line for line in text.partition("\nexport")[0].split("\n")
    )


def test_what_a_run_waits_for_is_said_in_slurms_words(tmp_path):
    plain = written(script(tmp_path))
    assert not {"hold", "begin", "nice", "dependency", "kill-on-invalid-dep"} & {*plain}
    waits = plan_of(tmp_path, "queue: {hold: true, at: 2027-01-31 22:00, priority: -10, max_parallel: 3}\n")
    found = written(script_of(waits, MARK, RUN, (), "afterok:12,afterany:13_4"))
    assert found["hold"] is True and found["begin"] == "2027-01-31T22:00:00" and found["nice"] == "10"
    assert (found["dependency"], found["kill-on-invalid-dep"]) == ("afterok:12,afterany:13_4", "yes")
    assert written(script_of(waits, SubmitToken("c0ffee", array=20), RUN, ()))["array"] == "0-19%3"
    again = written(script_of(begun(waits), MARK, RUN, ()))
    assert not {"hold", "begin"} & {*again} and again["nice"] == "10"
