"""A supervisor is woken by what its coordinators have written."""

import os
import socket
import subprocess
import sys

import pytest
from run_folder import plan_of

from launcher.node.standing_by import standby_argument
from launcher.run.bell import BELL, Bell, ringer_from
from launcher.run.layout import RunDir
from launcher.supervisor.agent_processes import AgentPlace, agent_process, coordinator_process

BOUND_S = 20.0
BECOMES = "import sys; from launcher.node.standing_by import agent_arguments; agent_arguments(sys.argv[1:]); "
RINGS = "import os; from launcher.run.bell import ringer_from; ringer_from(os.environ)()"


@pytest.fixture
def bell():
    bell = Bell()
    yield bell
    bell.close()


@pytest.mark.parametrize("kind", ["agent", "coordinator alone"])
def test_a_coordinator_rings_its_supervisors_bell(tmp_path, bell, kind):
    plan, attempt = plan_of(tmp_path), RunDir(tmp_path).attempt(1)
    agent = agent_process(plan, attempt, 0, bell=bell)
    process = agent if kind == "agent" else coordinator_process(plan, attempt, bell=bell)
    assert not bell.wait(0.0)
    subprocess.run([sys.executable, "-c", RINGS], env=process.environment, pass_fds=process.keep, check=True)
    assert bell.wait(BOUND_S)
    assert not bell.wait(0.0), "it had rung once"


def test_a_standby_that_becomes_the_agent_rings_it(tmp_path, bell):
    """Its descriptors have other numbers than the supervisor's."""
    agent = agent_process(plan_of(tmp_path), RunDir(tmp_path).attempt(1), 0, bell=bell)
    ours, theirs = socket.socketpair()
    with theirs, (tmp_path / "log").open("wb") as log:
        words = [str(tmp_path), standby_argument(theirs.fileno()), "0"]
        child = subprocess.Popen([sys.executable, "-c", BECOMES + RINGS, *words], pass_fds=[theirs.fileno()])
        assert AgentPlace(ours, child.pid).take(agent.argv, agent.environment, log.fileno(), agent.keep)
        assert child.wait(BOUND_S) == 0
    assert bell.wait(BOUND_S)


def test_a_variable_without_its_descriptor_rings_nothing(tmp_path):
    with (tmp_path / "file").open("wb") as file:
        for word in ("", "none", "99999", str(file.fileno())):
            ringer_from({BELL: word})()
        assert not os.path.getsize(file.name)
