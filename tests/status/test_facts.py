"""Test the facts read from a folder, with real processes behind the records."""

import os
import subprocess
import sys
import time
from pathlib import Path

from run_folder import dead_process, of_another_machine

from launcher.run.identity import process_id, this_process
from launcher.run.processes import TAG
from launcher.run.records import ProcessId
from launcher.states import Cause, State
from launcher.status.derive import derive
from launcher.status.facts import read_facts


def status(folder):
    return derive(read_facts(folder.path))


def test_a_running_run(folder):
    folder.running()
    found = status(folder)
    assert (found.state, found.step, found.rate, found.eta_s) == (State.RUNNING, 40, 2.0, 30.0)


def test_a_finished_run_costs_one_file(folder):
    folder.succeeded()
    traced = subprocess.run(
        [sys.executable, "-c", _COUNT, str(folder.path)], capture_output=True, text=True, check=True
    ).stdout.split()
    assert set(traced) == {"state.json"}  # io.open is audited twice
    assert status(folder).state is State.SUCCEEDED


_COUNT = """
import sys
from pathlib import Path
from launcher.status.facts import read_facts
path = Path(sys.argv[1])
def note(event, args):
    if event == "open" and str(args[0]).startswith(str(path)):
        print(Path(args[0]).name)
sys.addaudithook(note)
read_facts(path)
"""


def test_a_new_attempt_takes_the_word_from_an_ended_one(folder):
    folder.failed()
    assert status(folder).state is State.FAILED
    folder.run.attempt(2).path.mkdir()
    assert status(folder).state is State.FAILED, "a number that was only claimed is no attempt"
    folder.attempt(2)
    assert (status(folder).state, status(folder).attempt, status(folder).cause) == (State.STARTING, 2, None)


def test_a_dead_supervisor_with_a_living_coordinator_is_no_loss(folder):
    folder.plan().intent().supervisor(dead_process()).agent(this_process()).state()
    assert status(folder).state is State.RUNNING
    assert "supervisor is gone" in status(folder).message


def test_everything_dead_is_lost(folder):
    folder.plan().attempt(supervisor=dead_process()).state()
    assert (status(folder).state, status(folder).exit_code) == (State.LOST, 21)


def test_everything_dead_after_the_last_word_is_that_word(folder):
    folder.plan().attempt(supervisor=dead_process()).state().end(State.CANCELLED, Cause.CANCELLED, 20)
    assert (status(folder).state, status(folder).cause) == (State.CANCELLED, Cause.CANCELLED)


def test_the_pid_of_a_dead_supervisor_that_a_stranger_has_now(folder):
    stranger = this_process()
    folder.plan().attempt(supervisor=ProcessId(stranger.host, stranger.boot_id, stranger.pid, 1)).state()
    assert status(folder).state is State.LOST


def test_after_a_reboot_nothing_is_alive(folder):
    mine = this_process()
    folder.plan().attempt(supervisor=ProcessId(mine.host, "the boot before", mine.pid, mine.start_ticks)).state()
    assert status(folder).state is State.LOST


def test_another_machines_run_is_unknown(folder):
    folder.plan().attempt(supervisor=of_another_machine()).state()
    assert status(folder).state is State.UNKNOWN
    assert "last seen RUNNING" in status(folder).message


def test_a_stray_process_of_a_dead_run_keeps_it_from_being_lost(folder):
    folder.plan().attempt(supervisor=dead_process()).state()
    stray = subprocess.Popen(["sleep", "60"], env={**os.environ, TAG: str(folder.path)})
    try:
        while b"sleep" not in Path(f"/proc/{stray.pid}/cmdline").read_bytes():
            assert process_id(stray.pid) is not None
        assert status(folder).state is State.UNKNOWN
        assert str(stray.pid) in status(folder).message
    finally:
        stray.kill()
        stray.wait()
    assert status(folder).state is State.LOST


def test_between_submit_and_the_supervisors_word(folder):
    folder.plan().intent(by=this_process()).state(State.STARTING, generation=0)
    assert status(folder).state is State.STARTING


def test_a_submitter_that_died_too_early(folder):
    folder.plan().intent(by=dead_process()).state(State.STARTING, generation=0)
    assert status(folder).state is State.LOST


def test_damaged_records_are_said_and_judged_by_nobody(folder):
    folder.plan().attempt().state()
    folder.run.state.write_bytes(b'{"run": ')
    assert status(folder).state is State.STARTING
    folder.run.attempt(1).handle.write_bytes(b"\0\0")
    folder.run.attempt(1).started.write_bytes(b"\0\0")
    folder.run.attempt(1).intent.write_bytes(b"\0\0")
    folder.run.attempt(1).endpoint.unlink()
    folder.run.attempt(1).agent(0).unlink()
    found = status(folder)
    assert found.state is State.UNKNOWN
    assert "handle.json" in found.message
    assert (found.name, found.submitted_at) == ("job", 1000.0)


def test_a_folder_that_is_gone(tmp_path):
    found = derive(read_facts(tmp_path / "gone"))
    assert (found.state, found.run) == (State.UNKNOWN, "gone")


def test_files_may_be_of_any_age(folder):
    folder.running()
    for path in folder.path.rglob("*"):
        os.utime(path, (time.time() - 7200, time.time() + 7200))
    assert (status(folder).state, status(folder).as_of) == (State.RUNNING, None)
