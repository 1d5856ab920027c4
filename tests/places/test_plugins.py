"""A kind of cluster that another package brings: found by its entry point, with options of its own in spec and file."""

import json
import re
import sys
import tomllib
from importlib import import_module
from pathlib import Path

import pytest

from launcher.errors import BadInput, NotSupported
from launcher.places import kinds
from launcher.places.place import Place

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "launcher" / "docs" / "own-place.md"
PACKAGE = """
import os
from dataclasses import replace

from launcher.places.local.cluster import LocalCluster
from launcher.spec.kinds.sections import Field
from launcher.spec.kinds.text import Choice, Text


class ToyCluster(LocalCluster):
    kind = "toy"
    options = (
        Field("colour", Choice(("red", "blue")), "What colour it has", example="red"),
        Field("shelf", Text("a shelf"), "Where it stands", example="top"),
    )

    def machine(self, spec):
        with open(os.environ["TOY_NOTES"], "a") as notes:
            print(sorted(spec.plugins.get("toy", {}).items()), file=notes)
        return super().machine(spec)
"""


@pytest.fixture
def toy(lab, tmp_path):
    """The package as an installer would leave it, and a clusters file that names a cluster of that kind."""
    site = tmp_path / "site"
    (site / "toy-1.0.dist-info").mkdir(parents=True)
    (site / "toy.py").write_text(PACKAGE)
    (site / "toy-1.0.dist-info" / "METADATA").write_text("Metadata-Version: 2.1\nName: toy\nVersion: 1.0\n")
    (site / "toy-1.0.dist-info" / "entry_points.txt").write_text(f"[{kinds.GROUP}]\ntoy = toy:ToyCluster\n")
    own = tmp_path / "config" / "launch" / "clusters.yaml"
    own.parent.mkdir(parents=True)
    own.write_text("box: {kind: toy, defaults: {colour: red}}\n")
    own.chmod(0o600)
    lab.env |= {"PYTHONPATH": str(site), "TOY_NOTES": str(tmp_path / "notes")}
    lab.notes = lambda: (tmp_path / "notes").read_text().splitlines()
    return lab


def test_a_run_goes_there_and_its_options_come_along(toy):
    run = toy.submit(toy.chain(args="steps: 3", more="toy: {shelf: top}\n"), "--on", "box")
    status = toy.wait(run)
    assert (status["state"], status["cluster"]) == ("succeeded", "box")
    assert set(toy.notes()) == {"[('colour', 'red'), ('shelf', 'top')]"}
    toy.launch("resume", run, "--on", "toy", "--set", "run.args.steps=5", "--set", "toy.colour=blue")
    assert (toy.wait(run)["cluster"], toy.notes()[-1]) == ("toy", "[('colour', 'blue'), ('shelf', 'top')]")


def test_what_is_wrong_with_its_options_is_told_where_it_stands(toy):
    spec = toy.chain(more="toy: {colour: green, shlf: top}\n")
    said = toy.launch("submit", spec, "--on", "toy", check=2).stderr
    assert "toy.colour: expected one of red, blue, got 'green'" in said
    assert "toy.shlf: unknown option\nhint: did you mean shelf?" in said
    assert "toy.colour: expected one of" in toy.launch("validate", spec, check=2).stderr
    assert (
        json.loads(toy.launch("schema").stdout)["properties"]["toy"]["properties"]["shelf"]["description"]
        == "Where it stands"
    )


def blocks():
    """Return the blocks of the page: a place, its project, and a batch system."""
    return re.findall(r"^```(?:python|toml)\n(.*?)^```$", PAGE.read_text(), re.MULTILINE | re.DOTALL)


@pytest.fixture
def example(toy, tmp_path):
    """The package that the page of clusters shows."""
    python, project, _ = blocks()
    ((name, where),) = tomllib.loads(project)["project"]["entry-points"][kinds.GROUP].items()
    site = tmp_path / "site"
    module = site.joinpath(*where.partition(":")[0].split(".")).with_suffix(".py")
    module.parent.mkdir()
    module.write_text(python)
    (site / "example-1.0.dist-info").mkdir()
    (site / "example-1.0.dist-info" / "METADATA").write_text("Metadata-Version: 2.1\nName: example\nVersion: 1.0\n")
    (site / "example-1.0.dist-info" / "entry_points.txt").write_text(f"[{kinds.GROUP}]\n{name} = {where}\n")
    own = tmp_path / "config" / "launch" / "clusters.yaml"
    own.write_text(f"lab: {{kind: {name}, defaults: {{queue: long}}}}\n")
    return toy


def test_the_example_of_the_page_is_a_kind(example):
    spec = example.chain(more="mine: {queue: short}\n")
    plan = json.loads(example.launch("submit", spec, "--on", "mine", "--dry-run", "--json").stdout)
    assert (plan["cluster_kind"], plan["spec"]["plugins"]) == ("mine", {"mine": {"queue": "short"}})
    run = example.submit(example.chain(), "--on", "lab")
    record = json.loads((Path(example.status(run)["run_dir"]) / "plan.json").read_text())
    assert (record["cluster"], record["spec"]["plugins"]) == ("lab", {"mine": {"queue": "long"}})
    assert "job 7" in example.launch("cancel", run).stdout


QUEUE = {
    "qsub": """
import os, subprocess, sys
script = sys.argv[-1]
jobs = os.environ["TOY_JOBS"]
name = f"{len(os.listdir(jobs)) + 1}.server"
inside = {**os.environ, "PBS_JOBID": name, "JOB_LAUNCH_HOST": "localhost"}
quiet = subprocess.DEVNULL
job = subprocess.Popen(["sh", script], env=inside, start_new_session=True, stdin=quiet, stdout=quiet, stderr=quiet)
options = dict(line[6:].rstrip().split(" ", 1) for line in open(script) if line.startswith("#PBS -"))
with open(f"{jobs}/{name}", "w") as file:
    file.write(f"{job.pid} {options['N']} {options['A']}")
print(name)
""",
    "qstat": """
import json, os
jobs, told = os.environ["TOY_JOBS"], {}
for name in os.listdir(jobs):
    pid, run, submit_token = open(f"{jobs}/{name}").read().split(" ")
    if os.path.exists(f"/proc/{pid}") and "State:\\tZ" not in open(f"/proc/{pid}/status").read():
        told[name] = {"job_state": "R", "Job_Name": run, "Account_Name": submit_token, "exec_host": "localhost/0"}
print(json.dumps({"Jobs": told}))
""",
    "qdel": """
import os, signal, sys
os.killpg(int(open(f"{os.environ['TOY_JOBS']}/{sys.argv[1]}").read().split(" ")[0]), signal.SIGTERM)
""",
}


@pytest.fixture
def batch(toy, tmp_path):
    """The batch system of the page, and programs that start each job at once."""
    site, programs, jobs = tmp_path / "site", tmp_path / "programs", tmp_path / "jobs"
    programs.mkdir()
    jobs.mkdir()
    (site / "mybatch.py").write_text(blocks()[2])
    (site / "toy-1.0.dist-info" / "entry_points.txt").write_text(f"[{kinds.GROUP}]\nmybatch = mybatch:MyBatchCluster\n")
    (tmp_path / "config" / "launch" / "clusters.yaml").unlink()
    for name, text in QUEUE.items():
        (programs / name).write_text(f"#!{sys.executable}{text}")
        (programs / name).chmod(0o755)
    toy.env |= {"TOY_JOBS": str(jobs), "PATH": f"{programs}:{toy.env['PATH']}"}
    return toy


def test_the_batch_system_of_the_page_carries_runs_out_and_ends_them(batch):
    run = batch.submit(batch.chain(args="steps: 3"), "--on", "mybatch")
    assert (batch.wait(run)["state"], batch.status(run)["step"]) == ("succeeded", 3)
    long = batch.submit(batch.chain(args="steps: 100000"), "--on", "mybatch")
    batch.until("a step", lambda: batch.status(long)["step"])
    assert "2.server" in batch.launch("cancel", long).stdout
    assert batch.status(long)["state"] == "cancelled"


def test_a_run_of_a_kind_that_is_gone_is_told_of(toy):
    run = toy.submit(toy.chain(args="steps: 3"), "--on", "toy")
    toy.wait(run)
    without = {"PYTHONPATH": ""}
    assert run in toy.launch("status", env=without).stdout
    said = toy.launch("submit", toy.chain(), "--on", "toy", check=2, env=without).stderr
    assert "box.kind: expected one of" in said
    more = ("--set", "run.args.steps=4")  # a run that has succeeded is not resumed as it is
    assert "there is no kind of cluster 'toy'" in toy.launch("resume", run, *more, check=2, env=without).stderr


def test_ours_are_registered_as_those_of_others():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert project["entry-points"][kinds.GROUP] == {name: kind.path for name, kind in kinds.OURS.items()}


@pytest.mark.parametrize(
    ("method", "values"),
    [
        ("reach", (None, None, 0)),
        ("line_to", (None, 0)),
        ("release", (None, None)),
        ("cancel_without", (None, None, ())),
    ],
)
def test_what_a_kind_cannot_do_is_said_in_one_way(method, values):
    place = kinds.of_kind(kinds.DEFERRED)
    with pytest.raises(NotSupported, match="not supported on carried"):
        getattr(Place, method)(place, *values)


def test_a_class_that_is_no_place_is_refused():
    with pytest.raises(BadInput, match=r"derive it from launcher\.places\.place\.Place"):
        kinds.made(kinds.ClusterKind("collections:Counter"))


@pytest.mark.parametrize("kind", sorted(kinds.OURS))
def test_each_of_ours_has_a_doctor(kind):
    assert callable(import_module(kinds.of_kind(kind).doctor).check_up)
