"""A node without a coordinator: where its ranks are at home, who hears of them, and a loop that has children."""

import asyncio
import ctypes
import os
import signal
import subprocess
import sys

import pytest

from launcher.node.environment import node_environment
from launcher.node.ranks import group
from launcher.node.ranks.group import Home
from launcher.plan.build import build
from launcher.plan.facts import Machine, Project, RunIdentity
from launcher.plan.model import FrozenCode
from launcher.run.durable import make_dir
from launcher.run.layout import RunDir
from launcher.run.processes import become_subreaper, descendants, orphans
from launcher.spec.model import JobSpec, RunOptions

PR_SET_CHILD_SUBREAPER = 36


def home_of(folder, script, **sections):
    """Make the folder of a run of this script; `sections` are those of its spec."""
    run = RunDir(folder / "stay-2222")
    attempt = run.attempt(1)
    make_dir(run.code)
    make_dir(run.metrics)
    make_dir(attempt.node(0))
    (run.code / "stay.py").write_text(script)
    spec = JobSpec("stay", RunOptions(script="stay.py"), **sections)
    place = RunIdentity("stay-2222", str(run.path), "local", "local", "", 0.0)
    project = Project(str(folder), {"stay.py"}, set(), module_found=True)
    plan = build(spec, (), place, Machine(2, ()), project, FrozenCode("", 1, 1), sys.executable)
    return Home(plan, run, attempt, plan.nodes[0], node_environment(os.environ, plan, plan.nodes[0], 1, {}))


def play(scene):
    """Children that die as the loop closes are nothing to it: asyncio takes the pipe away before the handler."""

    async def to_its_end():
        try:
            await scene()
        finally:
            asyncio.get_running_loop().remove_signal_handler(signal.SIGCHLD)

    asyncio.run(to_its_end())


class Ears:
    def __init__(self):
        self.exits = []
        self.begun_ranks = []

    def begun(self, rank):
        self.begun_ranks.append(rank)

    def on_report(self):
        pass

    def on_last_report(self):
        pass

    def ended(self, exited):
        self.exits.append(exited.exit)


@pytest.fixture
def processes_of_its_own(monkeypatch):
    """A stop ends everything below the agent's process, which here is pytest's: a lab of other tests stays up."""
    strangers = set(descendants(os.getpid()))

    monkeypatch.setattr(group, "orphans", lambda root, trees: orphans(root, {*strangers, *trees}))
    become_subreaper()  # as an agent is: ranks are children of its own
    bystander = subprocess.Popen(["sleep", "3600"])
    strangers.add(bystander.pid)
    yield
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 0, 0, 0, 0)
    assert bystander.poll() is None
    bystander.kill()
    bystander.wait()
