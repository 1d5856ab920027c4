"""A supervisor is woken by what its coordinators have written."""

import os
import socket
import subprocess
import sys

import pytest
from run_folder import plan_of

from launcher.node.standing_by import standby_argument
from launcher.run.layout import RunDir
from launcher.run.shared_event import SHARED_EVENT, SharedEvent, setter_from
from launcher.supervisor.agent_processes import AgentPlace, agent_process, coordinator_process

BOUND_S = 20.0
BECOMES = "import sys; from launcher.node.standing_by import agent_arguments; agent_arguments(sys.argv[1:]); "
RINGS = "import os; from launcher.run.shared_event import setter_from; setter_from(os.environ)()"


@pytest.fixture
def records_due():
    records_due = SharedEvent()
    yield records_due
    records_due.close()


@pytest.mark.parametrize("kind", ["agent", "coordinator alone"])
def test_a_coordinator_rings_its_supervisors_bell(tmp_path, records_due, kind):
    plan, attempt = plan_of(tmp_path), RunDir(tmp_path).attempt(1)
    agent = agent_process(plan, attempt, 0, records_due=records_due)
    process = agent if kind == "agent" else coordinator_process(plan, attempt, records_due=records_due)
    assert not records_due.wait(0.0)
    subprocess.run([sys.executable, "-c", RINGS], env=process.environment, pass_fds=process.keep, check=True)
    assert records_due.wait(BOUND_S)
    assert not records_due.wait(0.0), "it had was_set once"


def test_a_standby_that_becomes_the_agent_rings_it(tmp_path, records_due):
    """Its descriptors have other numbers than the supervisor's."""
    agent = agent_process(plan_of(tmp_path), RunDir(tmp_path).attempt(1), 0, records_due=records_due)
    ours, theirs = socket.socketpair()
    with theirs, (tmp_path / "log").open("wb") as log:
        words = [str(tmp_path), standby_argument(theirs.fileno()), "0"]
        child = subprocess.Popen([sys.executable, "-c", BECOMES + RINGS, *words], pass_fds=[theirs.fileno()])
        assert AgentPlace(ours, child.pid).take(agent.argv, agent.environment, log.fileno(), agent.keep)
        assert child.wait(BOUND_S) == 0
    assert records_due.wait(BOUND_S)


def test_a_variable_without_its_descriptor_rings_nothing(tmp_path):
    with (tmp_path / "file").open("wb") as file:
        for word in ("", "none", "99999", str(file.fileno())):
            setter_from({SHARED_EVENT: word})()
        assert not os.path.getsize(file.name)
