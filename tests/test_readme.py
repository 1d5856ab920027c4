"""The README does what it says: its commands run, its spec is the shipped one, and no command or flag is missing."""

import contextlib
import io
import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from launcher.cli.commands import COMMANDS
from launcher.cli.main import main
from launcher.errors import Exit
from launcher.shipped import shipped
from launcher.spec.read import parse_spec, read_spec

ROOT = shipped("jobs").parent
README = (ROOT / "README.md").read_text()


@pytest.fixture
def checkout(lab):
    """A project like a clone of this one, with a state folder of its own."""
    for name in ("jobs", "templates"):
        shutil.copytree(ROOT / name, lab.project / name)
    return lab


def blocks(kind):
    return re.findall(rf"^```{kind}\n(.*?)^```$", README, re.MULTILINE | re.DOTALL)


def python_block(word):
    [block] = [block for block in blocks("python") if word in block]
    return block


def console_block(word):
    [block] = [block for block in blocks("console") if word in block]
    return block


def shell(lab, command):
    words = command.removeprefix("uv run ").split()
    assert words[0] == "launch", command
    return lab.launch(*words[1:], timeout=300)


def shape(line):
    """A line of output without what differs from run to run."""
    return re.sub(
        r"\s+", " ", re.sub(r"[0-9a-f]{64}|resnet-ddp-\w+|[0-9][0-9:.]*[0-9]?m? ?\d*s?|^RUN +", "N", line)
    ).strip()


@pytest.mark.timeout(400)
def test_the_first_screen(checkout):
    """All three commands, in order, print what it shows; with the job of the YAML above them."""
    shown = parse_spec(blocks("yaml")[0], "README.md")
    assert shown == read_spec(ROOT / "jobs" / "resnet_ddp.yaml")
    for part in blocks("console")[0].split("$ ")[1:]:
        command, *lines = part.strip().splitlines()
        done = shell(checkout, command)
        said = {shape(line) for line in (done.stdout + done.stderr).splitlines()}
        wanted = [line for line in lines if line != "..."]
        assert wanted, command
        assert [line for line in wanted if shape(line) not in said] == [], f"{command}\n{done.stdout}\n{done.stderr}"
    checkout.launch("wait", "last")


def test_your_own_job(checkout):
    checkout.script("train.py", "print('trained')\n")
    commands = [
        line.removeprefix("$ ") for line in console_block("launch init ddp").splitlines() if line.startswith("$ ")
    ]
    assert len(commands) == 3
    for command in commands:
        shell(checkout, command)


def test_the_problems_that_it_shows(checkout):
    command, *lines = console_block("scirpt").strip().splitlines()
    checkout.script("train.py", "")
    checkout.spec("name: x\n\nrun:\n  scirpt: train.py\n  script: train.py\n  # gone\n")
    checkout.spec("name: x\n\nrun:\n  scirpt: train.py\nresources:\n  nodes: two\n")
    done = checkout.launch(*command.removeprefix("$ launch ").split(), check=Exit.BAD_INPUT)
    assert [line for line in lines if line not in done.stderr.splitlines()] == []


def test_progress_in_three_lines(checkout):
    lines = python_block("LAUNCH_PROGRESS")
    checkout.script("report.py", f"import os\n{lines}")
    spec = "name: report\nrun:\n  script: report.py\nresources:\n  ranks_per_node: 1\n"
    status = checkout.wait(checkout.submit(checkout.spec(spec)))
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
        [sys.executable, "-c", given + python_block("trainer import Settings")],
        cwd=tmp_path, capture_output=True, text=True, timeout=110,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "fingerprint sha256=" in done.stdout
    assert (tmp_path / "checkpoints" / "step-00000012").is_dir()


def test_the_python_api(checkout):
    done = subprocess.run(
        [sys.executable, "-c", python_block("from launcher import")],
        cwd=checkout.project, env=checkout.env, capture_output=True, text=True, timeout=110,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    *log, state, listed = done.stdout.splitlines()
    assert any("step 20/20" in line for line in log)
    assert state == "succeeded"
    assert listed.endswith("succeeded")


@pytest.mark.parametrize("command", sorted(COMMANDS))
def test_every_command_and_flag_is_in_the_table(command):
    row = next(line for line in README.splitlines() if line.startswith(f"| `launch {command}"))
    with contextlib.redirect_stdout(io.StringIO()) as help_text:
        assert main([command, "--help"]) == Exit.OK
    options = help_text.getvalue().split("options:")[1].split("examples:")[0]
    flags = re.findall(r"^  (-[-\w]+)|, (-[-\w]+)", options, re.MULTILINE)
    missing = [flag for pair in flags for flag in pair if flag and flag not in ("-h", "--help") and flag not in row]
    assert missing == []


def test_every_exit_code_is_in_the_table():
    assert [code for code in Exit if f"| {code.value} |" not in README] == []


def test_every_link_leads_somewhere():
    links = re.findall(r"\]\((?!https?:)([^)#]+)\)", README)
    assert links
    assert [link for link in links if not (ROOT / link).exists()] == []


def test_the_json_that_programs_rely_on(checkout):
    promised = {
        "run", "name", "state", "cause", "exit_code", "attempt", "generation", "step", "world_size", "restarts",
        "checkpoint", "nodes", "ranks", "started_at", "ended_at", "run_dir",
    }  # fmt: skip
    run = checkout.submit(checkout.chain(args="steps: 3"))
    checkout.wait(run)
    status = json.loads(checkout.launch("status", run, "--json").stdout)
    assert promised <= set(status)
    assert {"total", "by_cause"} <= set(status["restarts"])
    assert {"rank", "node", "pid", "state", "step"} <= set(status["ranks"][0])
    assert Path(status["run_dir"]).is_dir()
