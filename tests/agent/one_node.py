"""A node without a coordinator: where its ranks are at home, and a loop that has children."""

import asyncio
import os
import signal
import sys

from launcher.agent.environment import node_environment
from launcher.agent.ranks.group import Home
from launcher.plan.build import build
from launcher.plan.facts import Machine, Project, RunIdentity
from launcher.plan.model import FrozenCode
from launcher.rundir.durable import make_dir
from launcher.rundir.layout import RunDir
from launcher.spec.model import JobSpec, RunOptions


def home_of(folder, script, **sections):
    """Of a run of this script; `sections` are of its spec."""
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
