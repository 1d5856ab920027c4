"""Test what is done on one host of a run, which has only part of the run's files."""

import os
import subprocess
import sys

import msgspec
import pytest

from launcher.places.ssh.host import presence, server
from launcher.run.durable import read_record
from launcher.run.identity import process_id
from launcher.run.records import AttemptEnd, Endpoint, StopRequest
from launcher.states import State
from tests.run_folder import RunFolder, dead_process, of_another_machine, plan_of

SUPERVISOR = """
import signal, sys, time
def save(*_):
    time.sleep(0.1)
    print("saved", flush=True)
    sys.exit()
signal.signal(signal.SIGTERM, save)
print("up", flush=True)
time.sleep(600)
"""


@pytest.fixture
def folder(tmp_path):
    """Make the folder of a run on a disk that its hosts share."""
    made = RunFolder(tmp_path / "runs" / "job-1a2b")
    plan = plan_of(made.path, 2)
    assert not plan.disks_apart
    return made.write(made.run.plan, plan)


@pytest.fixture
def supervisor(folder):
    """Start a stand-in for the supervisor of a host that does not lead; it needs a moment to end."""
    environment = {**os.environ, "LAUNCH_RUN_DIR": str(folder.path)}
    words = [sys.executable, "-c", SUPERVISOR]
    with subprocess.Popen(words, env=environment, stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout.readline() == "up\n"
        yield child
        child.kill()


def end(folder):
    return read_record(folder.run.attempt(1).end, AttemptEnd)


def test_a_host_that_does_not_lead_has_its_grace_and_leaves_the_last_word_to_the_leaders(folder, supervisor):
    attempt = folder.attempt(supervisor=of_another_machine()).run.attempt(1)
    folder.write(attempt.node_started(1), process_id(supervisor.pid))
    report = server._cancel(folder.run)
    assert (report.ended, report.already) == ((f"supervisor, process {supervisor.pid}",), False)
    assert supervisor.stdout.read() == "saved\n"
    assert read_record(attempt.stop, StopRequest).kind == "cancel"
    assert end(folder) is None
    folder.attempt(supervisor=dead_process())
    server._cancel(folder.run)
    assert end(folder).state is State.CANCELLED


def test_on_a_disk_of_its_own_every_host_says_how_it_ended(folder):
    folder.write(folder.run.plan, msgspec.structs.replace(plan_of(folder.path, 2), disks_apart=True))
    folder.attempt(supervisor=dead_process())
    server._cancel(folder.run)
    assert end(folder).state is State.CANCELLED


def test_a_host_tells_of_its_own_processes_where_it_has_its_own_disk(folder):
    """What it has of the leader's processes is a copy: it cannot know of them, and need not."""
    attempt = folder.attempt(supervisor=dead_process()).state(State.RUNNING).run.attempt(1)
    folder.write(attempt.endpoint, Endpoint("node0", 1, of_another_machine()))
    assert server._report(folder.run, 0).value.state is State.UNKNOWN, "on one disk for all nobody here can tell"
    folder.write(attempt.host_index, presence.HostIndex(1, (), "python"))
    assert server._report(folder.run, 0).value.state is State.LOST
    with presence.held(folder.run):
        assert server._report(folder.run, 0).value.state is State.UNKNOWN, "a supervisor that has written nothing yet"
