"""Ends of which no process was left to notify."""

import os
import subprocess
import sys
import time

import msgspec
import pytest
from run_folder import RunFolder, before_this_boot

from launcher.run import registry
from launcher.run.durable import read_lines
from launcher.run.locks import locked
from launcher.run.records import NOT_TOLD, TOLD, Event, Failure
from launcher.states import Cause, State
from launcher.status.derive import derive
from launcher.status.facts import read_facts
from launcher.supervisor.notify.late import LATE_S, notify_of_end
from launcher.supervisor.notify.record import Notifying, Recipient


@pytest.fixture
def lost(tmp_path, web):
    """A run whose processes went with the machine: it has no last word."""
    folder = RunFolder(tmp_path / "runs" / "job-abcd").plan().attempt(supervisor=before_this_boot())
    return to_tell(folder.event("submitted", kind="submitted").state(step=7), web)


def to_tell(folder, web, on=("ended",)):
    return folder.write(folder.run.notify, Notifying((Recipient("json-1", "json", web.address),), on))


def notified(folder):
    """Send what is due of the run, and return (recipient, problem) of each message."""
    return [(one.recipient, one.problem) for one in notify_of_end(folder.run, derive(read_facts(folder.path)))]


def notes(folder):
    return [one.kind for one in read_lines(folder.run.events, Event) if one.kind in (TOLD, NOT_TOLD)]


def test_it_is_told_once(lost, web):
    assert notified(lost) == [("json 127.0.0.1", "")]
    assert notified(lost) == []
    (said,) = web.taken
    assert (said["title"], said["state"], said["key"], said["step"]) == ("job-abcd is lost", "lost", "ended/1", 7)
    assert said["summary"] == "the run's processes are gone and left no record of its end"
    assert notes(lost) == [TOLD]


def test_who_answers_later_is_told_later_and_who_refuses_is_not_asked_again(lost, web):
    web.answers = [503, 404]
    assert notified(lost)[0][1].endswith("it is tried again the next time") and notes(lost) == []
    assert "404" in notified(lost)[0][1] and notes(lost) == [NOT_TOLD]
    assert notified(lost) == [] and web.taken == []


def test_an_earlier_failure_does_not_explain_an_end_that_only_others_know(lost, web):
    lost.state(failure=Failure(Cause.NODE_LOST, "node 1 is lost", 1, 1))
    notified(lost)
    assert "node 1" not in web.taken[0]["summary"]


def ask_for_starts_only(folder):
    what = msgspec.json.decode(folder.run.notify.read_bytes(), type=Notifying)
    folder.write(folder.run.notify, msgspec.structs.replace(what, on=("started",)))


@pytest.mark.parametrize(
    ("about", "change"),
    [
        ("it is being told", None),
        ("nobody is to hear", lambda run: run.run.notify.unlink()),
        ("nobody asked for ends", ask_for_starts_only),
        ("who cancelled knows", lambda run: run.stop()),
        ("one host of several says so", lambda run: run.end(State.FAILED, Cause.NODE_LOST, 15, alone=True)),
        ("it goes on", lambda run: run.attempt()),
        ("its own process may tell yet", lambda run: run.succeeded(ended_at=time.time() - LATE_S / 2)),
    ],
)
def test_there_is_nothing_to_tell(lost, web, about, change):
    if change is None:
        with locked(lost.run.notify_lock):
            assert notified(lost) == []
    else:
        change(lost)
        assert notified(lost) == []
    assert web.posts == [], about


def test_an_end_that_its_own_process_did_not_get_to_tell_is_told(lost, web):
    lost.succeeded(ended_at=time.time() - 2 * LATE_S)
    assert notified(lost) == [("json 127.0.0.1", "")] and web.taken[0]["state"] == "succeeded"


def test_the_command_looks_at_all_runs_and_is_quiet_where_there_is_nothing(lost, web, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    other = to_tell(RunFolder(tmp_path / "runs" / "other-bcde").succeeded(), web)
    for run in (lost, other):
        registry.register(run.path.name, run.path, fsync=False)

    def due():
        words = [sys.executable, "-m", "launcher.cli.main", "notify", "--due"]
        done = subprocess.run(words, env=dict(os.environ), capture_output=True, text=True, timeout=150)
        return done.returncode, done.stdout, done.stderr

    web.answers = [500]
    code, out, _ = due()
    assert code == 5 and out.startswith("job-abcd: ended: json 127.0.0.1: it answers 500")
    assert due() == (0, "job-abcd: ended: json 127.0.0.1: delivered\n", "")
    assert due() == (0, "", "") and len(web.taken) == 1
