"""The agent of a run boots while the submit still writes it down."""

import os
import sys
from pathlib import Path

import pytest
from lab import command, environment, parent

from launcher.supervisor.agent_processes import AgentPlace

# What it does to each agent that boots ahead: {DEED}.
MEDDLER = """
import os, sys
if "launcher.node" in sys.orig_argv and sys.orig_argv[-2].startswith("@"):
    {DEED}
"""


def agent_log(lab, run):
    return lab.run_dir(run) / "attempts" / "0001" / "node-00" / "agent.log"


def test_the_first_agent_booted_ahead_and_is_what_it_would_be_otherwise(lab):
    run = lab.submit(lab.chain(hold=3))
    lab.until_step(run, 3)
    agent = lab.agent_pid(run, 0)
    *_, where, attempt, node, _ = command(agent).decode().split("\0")
    assert (where, attempt[:1], node) == (str(lab.run_dir(run)), "@", "0")
    assert f"LAUNCH_RUN_DIR={lab.run_dir(run)}".encode() in environment(agent)
    assert b"launcher.supervisor" in command(parent(agent))
    opened = [os.readlink(f"/proc/{agent}/fd/{number}") for number in (0, 1, 2)]
    assert opened == [os.devnull, *[str(agent_log(lab, run))] * 2]
    lab.let_go()
    assert lab.wait(run)["state"] == "succeeded"


@pytest.mark.parametrize("deed", ["os._exit(1)", "raise ImportError('half an installation')"])
def test_where_it_does_not_come_up_another_is_started(lab, deed):
    (lab.project.parent / "sitecustomize.py").write_text(MEDDLER.replace("{DEED}", deed))
    run = lab.submit(lab.chain(args="steps: 5"), env={"PYTHONPATH": str(lab.project.parent)})
    status = lab.wait(run)
    assert status["state"] == "succeeded"


def test_nobody_needs_it_where_its_place_is_given_up(tmp_path):
    place = AgentPlace.booting(tmp_path, os.environ, None)
    place.leave()
    assert os.waitpid(place.pid, 0) == (place.pid, 0)


def test_what_it_hears_it_takes_on(tmp_path):
    """Environment, output, and a descriptor that it is to hold."""
    place = AgentPlace.booting(tmp_path, os.environ, None)
    log = os.open(tmp_path / "log", os.O_CREAT | os.O_WRONLY)
    words = [sys.executable, "-P", "-m", "launcher.node", str(tmp_path), "7", "0"]
    assert place.take(words, {"PATH": os.environ["PATH"]}, log, [log])
    assert os.waitpid(place.pid, 0)[1] != 0
    said = Path(tmp_path / "log").read_text()
    assert f"{tmp_path}/plan.json: is missing" in said
