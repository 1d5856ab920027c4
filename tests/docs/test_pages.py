"""The pages do what they say: their commands and programs run."""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from launcher.cli.commands import ALSO, COMMANDS, GROUPS
from launcher.errors import Exit
from launcher.spec.fields import JOB
from launcher.spec.read import parse_spec
from tests.docs import reference
from tests.docs.blocks import DOCS, ROOT, block
from tests.docs.picture import PICTURE, drawn

pytestmark = pytest.mark.nightly

OWN_JOB = DOCS / "own-job.md"


@pytest.mark.daily
def test_your_own_job(lab):
    lab.script("train.py", "print('trained')\n")
    shown = block(OWN_JOB, "console", "launch spec init ddp").splitlines()
    commands = [line.removeprefix("$ launch ") for line in shown if line.startswith("$ ")]
    assert len(commands) == 3
    for command in commands:
        lab.launch(*command.split())


@pytest.mark.daily
def test_the_problems_that_it_shows(lab):
    command, *lines = block(OWN_JOB, "console", "scirpt").strip().splitlines()
    lab.script("train.py", "")
    lab.spec("name: x\n\nrun:\n  scirpt: train.py\nresources:\n  nodes: two\n")
    done = lab.launch(*command.removeprefix("$ launch ").split(), check=Exit.BAD_INPUT)
    assert [line for line in lines if line not in done.stderr.splitlines()] == []


@pytest.mark.daily
def test_progress_in_three_lines(lab):
    lines = block(OWN_JOB, "python", "LAUNCH_PROGRESS")
    lab.script("report.py", f"import os\n{lines}")
    spec = "name: report\nrun:\n  script: report.py\nresources:\n  ranks_per_node: 1\n"
    status = lab.wait(lab.submit(lab.spec(spec)))
    assert (status["step"], status["total_steps"], status["checkpoint"]) == (12, 200, 10)
    assert status["metrics"] == {"loss": 0.31}


def test_a_training_of_your_own(tmp_path):
    given = """
import sys
import torch
from torch.optim import AdamW
from torch.utils.data import TensorDataset
model = torch.nn.Linear(4, 2)
data = TensorDataset(torch.randn(256, 4), torch.zeros(256, dtype=torch.int64))
def loss(model, batch):
    return torch.nn.functional.cross_entropy(model(batch[0]), batch[1])
"""
    done = subprocess.run(
        [sys.executable, "-c", given + block(OWN_JOB, "python", "trainer import Settings")],
        cwd=tmp_path, capture_output=True, text=True, timeout=280,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "fingerprint sha256=" in done.stdout
    assert (tmp_path / "checkpoints" / "step-00000012").is_dir()


@pytest.mark.daily
def test_each_way_to_share_a_model_can_be_checked_beforehand(lab):
    shutil.copytree(ROOT / "jobs", lab.project / "jobs")
    commands = block(DOCS / "bigger-models.md", "console", "jobs/gpt_tp.yaml").splitlines()
    assert len(commands) == 6
    for command in commands:
        assert "ranks" in lab.launch(*command.removeprefix("$ launch ").split()).stdout


def test_the_python_api(lab):
    shutil.copytree(ROOT / "jobs", lab.project / "jobs")
    done = subprocess.run(
        [sys.executable, "-c", block(DOCS / "python.md", "python", "from launcher import runs")],
        cwd=lab.project, env=lab.env, capture_output=True, text=True, timeout=280,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    *log, state, listed = done.stdout.splitlines()
    assert any("step 20/20" in line for line in log)
    assert state == "succeeded"
    assert listed.endswith("succeeded")


@pytest.mark.daily
def test_a_function_from_python(lab):
    done = subprocess.run(
        [sys.executable, "-c", block(DOCS / "python.md", "python", "def train")],
        cwd=lab.project, env=lab.env, capture_output=True, text=True, timeout=280,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [
        "train(lr=0.1), the function is pickled by cloudpickle", "{'lr': 0.1, 'ranks': 2, 'loss': 0.1}",
    ]  # fmt: skip


TRAIN = """
import json, os, sys
wire = open(os.environ["LAUNCH_PROGRESS"], "w", buffering=1)
for step in (1, 2, 3):
    wire.write(json.dumps({"step": step, "loss": float(sys.argv[2]) / step}) + chr(10))
"""


@pytest.mark.daily
def test_the_python_api_without_a_file(lab):
    lab.script("train.py", TRAIN)
    done = subprocess.run(
        [sys.executable, "-c", block(DOCS / "python.md", "python", "from launcher import Run")],
        cwd=lab.project, env=lab.env, capture_output=True, text=True, timeout=280,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    first, *rows, arguments, state = done.stdout.splitlines()
    found: dict[str, list] = {}
    for row in rows:
        name, step, loss = row.split()
        found.setdefault(name, []).append((int(step), float(loss)))
    assert first in found
    for lr, steps in zip((0.1, 0.01), found.values(), strict=True):
        assert (steps[0], steps[-1]) == ((1, lr), (3, lr / 3))  # of reports in quick succession some are left out
    assert (arguments, state) == ("{'--lr': ('0.1', '0.01')}", "succeeded")


@pytest.mark.daily
def test_the_json_that_programs_rely_on(lab):
    promised = {
        "run", "name", "state", "cause", "exit_code", "attempt", "generation", "step", "world_size", "restarts",
        "checkpoint", "nodes", "ranks", "started_at", "ended_at", "run_dir",
    }  # fmt: skip
    run = lab.submit(lab.chain(args="steps: 3"))
    lab.wait(run)
    status = json.loads(lab.launch("status", run, "--json").stdout)
    assert promised <= set(status)
    assert {"total", "by_cause"} <= set(status["restarts"])
    assert {"rank", "node", "pid", "state", "step"} <= set(status["ranks"][0])
    assert Path(status["run_dir"]).is_dir()


@pytest.mark.daily
@pytest.mark.parametrize("page", sorted(DOCS.glob("*.md")), ids=lambda page: page.stem)
def test_every_command_that_a_page_shows_is_one_of_ours(page):
    shown = re.findall(r"(?:`|^\$ |^)launch ([a-z]+)(?=[ `\n])", page.read_text(), re.MULTILINE)
    assert [word for word in shown if word not in (*COMMANDS, *ALSO, *GROUPS, "help")] == []


@pytest.mark.daily
def test_the_options_that_those_who_come_from_elsewhere_are_shown():
    """What stands in the last column of the tables is read, with a command where there is none."""
    rows = [line for line in (DOCS / "coming-from.md").read_text().splitlines() if line.startswith("| ")]
    sections = "|".join(field.key for field in JOB.options)
    shown = [one for row in rows for one in re.findall(rf"`((?:{sections}): [^`]+)`", row.split(" | ")[-1])]
    assert len(shown) > 15
    for option in shown:
        lines = [option.replace("run: {", "run: {command: x, ") if not re.search("script:", option) else option]
        lines += [] if option.startswith("run:") else ["run: {command: x}"]
        lines += [] if option.startswith("name:") else ["name: x"]
        parse_spec("\n".join(lines) + "\n", "coming-from.md")


OF_ROLES = {"LAUNCH_ROLE", "LAUNCH_ROLE_RANK", "LAUNCH_PORT", "LAUNCH_PORT_", "LAUNCH_ADDR_"}


@pytest.mark.daily
def test_the_environment_is_that_of_a_rank(lab):
    """What the page says that a rank finds, it finds; the rest depends on options."""
    page = (DOCS / "environment.md").read_text()
    optional = (
        {name for name in reference.OF_A_RANK if "MEMORY" in name}
        | {
            "LAUNCH_CHECKPOINT_BUDDY",
            "LAUNCH_CHECKPOINT_COPY_LAG",
            "LAUNCH_REPEAT",
            "LAUNCH_DISK",
            "LAUNCH_JOINS",
            "LAUNCH_RESERVE",
            "LAUNCH_NOTES_COPIED",
            "LAUNCH_LEASE_S",
        }
        | {name for name in reference.OF_A_RANK if name in OF_ROLES}
    )
    lab.script("names.py", "import os\nprint(*sorted(os.environ))\n")
    body = "name: x\nrun:\n  script: names.py\nresources:\n  ranks_per_node: 1\n"
    run = lab.submit(lab.spec(body))
    lab.wait(run)
    found = set(lab.launch("logs", run).stdout.split()) | set(os.environ)
    assert [name for name in set(reference.OF_A_RANK) - optional if name not in found or name not in page] == []


AIRFLOW = """
def task(function):
    return function


def dag(**options):
    assert options["schedule"] == "@daily"
    return task
"""
GIVEN_WEIGHTS = "import os, sys\nassert os.path.isdir(os.path.dirname(sys.argv[2])), sys.argv\n"


def test_the_tasks_for_airflow(lab, tmp_path):
    """With decorators that let them be the plain functions that they are."""
    (tmp_path / "airflow").mkdir()
    (tmp_path / "airflow" / "sdk.py").write_text(AIRFLOW)
    lab.script("train.py", TRAIN.replace("sys.argv[2]", "1"))
    lab.script("predict.py", GIVEN_WEIGHTS)
    for name in ("train", "predict"):
        run = f"{{script: {name}.py, preload: []}}"
        lab.spec(f"name: {name}\nrun: {run}\nresources: {{ranks_per_node: 1}}\n", f"{name}.yaml")
    program = block(DOCS / "schedulers.md", "python", "from airflow")
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=lab.project, env={**lab.env, "PYTHONPATH": str(tmp_path)},
        capture_output=True, text=True, timeout=200,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    runs = json.loads(lab.launch("status", "--json").stdout)
    assert [(run["name"], run["state"]) for run in runs] == [("predict", "succeeded"), ("train", "succeeded")]


@pytest.mark.daily
def test_the_steps_that_it_shows_are_those_of_the_job():
    shown = block(DOCS / "steps.md", "yaml", "steps:")
    whole = (ROOT / "jobs" / "train_then_predict.yaml").read_text()
    assert [one for one in re.findall(r"[\w-]+(?=:)", shown) if f"{one}:" not in whole] == []


@pytest.mark.daily
def test_the_picture_of_the_readme_is_drawn_without_a_network():
    svg = drawn("$ launch status\n\x1b[32mresnet-ddp-7kza  succeeded\x1b[0m\n")
    assert "resnet-ddp-7kza" in svg and "@font-face" not in svg and "url(http" not in svg
    shown = PICTURE.read_text()
    assert "continues&#160;in&#160;place" in shown and "url(http" not in shown
    assert f"({PICTURE.relative_to(ROOT)})" in (ROOT / "README.md").read_text()
