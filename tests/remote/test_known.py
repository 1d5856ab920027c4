"""What the state folder holds of remote runs, and which run a reference means."""

import time
from pathlib import Path

import pytest
from run_folder import RunFolder

from launcher.errors import NoSuchRun
from launcher.remote import known
from launcher.remote.known import Asked, Login, RemoteRun, Seen
from launcher.remote.wire import Made, Outcome
from launcher.rundir import registry
from launcher.rundir.durable import Damaged
from launcher.rundir.identity import this_process
from launcher.status.derive import derive
from launcher.status.facts import read_facts

HPC = Login("hpc", "me@hpc", "launch", "~/launch")


@pytest.fixture
def state(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    return tmp_path / "state" / "launch" / "remote"


def remote(run_id, submitted_at=1000.0):
    run = RemoteRun(run_id, "job", HPC, "slurm", f"/home/me/launch/runs/{run_id}", submitted_at, "/here/job.yaml")
    known.save(run)
    return run


def local(tmp_path, run_id, submitted_at):
    folder = RunFolder(tmp_path / "runs" / run_id).running(submitted_at=submitted_at)
    registry.register(run_id, folder.path)


def asked(token="ab" * 32):
    return Asked(token, HPC, "job", "slurm", "/here/job.yaml", 1000.0, this_process())


def test_nothing_is_known_at_first(state):
    assert known.runs() == []
    assert known.asked() == []
    assert known.answers("hpc") == {}
    assert not known.any_known()
    assert known.find("last") is None
    assert known.find("job") is None
    assert not state.exists(), "looking makes nothing"


def test_a_run_is_found_by_id_beginning_and_last(state, tmp_path):
    one, two = remote("job-aaaa", 1000.0), remote("job-abbb", 2000.0)
    assert known.runs() == [one, two]
    assert known.any_known()
    assert known.find("job-aaaa") == one
    assert known.find("job-ab") == two
    assert known.find("last") == two
    assert known.find("zzz") is None
    assert known.find("") is None
    with pytest.raises(NoSuchRun, match="the beginning of 2"):
        known.find("job")
    assert (state / "job-aaaa.json").stat().st_mode & 0o777 == 0o600


def test_local_runs_have_their_say(state, tmp_path):
    one = remote("job-aaaa", time.time() - 100)
    local(tmp_path, "job-aaab", time.time() - 50)
    assert known.find("last") is None, "the newest is here"
    assert known.find("job-aaab") is None
    assert known.find("job-aaaa") == one
    with pytest.raises(NoSuchRun) as raised:
        known.find("job-")
    assert raised.value.lines[1] == "hint: job-aaaa, job-aaab"
    newer = remote("job-cccc", time.time())
    assert known.find("last") == newer
    assert known.find("job-c") == newer


def test_only_local_beginnings_are_left_to_the_local_words(state, tmp_path):
    remote("other-aaaa")
    local(tmp_path, "job-aaaa", 1.0)
    local(tmp_path, "job-aaab", 2.0)
    assert known.find("job") is None


@pytest.mark.parametrize("run_id", ["", "last", "../x", "a/b", ".x", "A", "a" * 129, "a\n"])
def test_an_id_from_the_other_side_is_never_a_path(state, run_id):
    with pytest.raises(Damaged):
        remote(run_id)
    assert not state.exists() or list(state.iterdir()) == []


def test_what_is_no_record_is_passed_over(state):
    one = remote("job-aaaa")
    (state / "job-bbbb.json").write_text("{")
    (state / "job-cccc.json").write_text('{"run": "job-cccc"}')
    (state / ".tmp-1234").write_text("half")
    assert known.runs() == [one]


def test_a_submit_is_settled(state):
    known.note_asked(asked())
    assert known.any_known()
    assert known.asked() == [asked()]
    runs = known.settle(asked(), Outcome((Made("job-aaaa", "/far/job-aaaa"), Made("job-aaab", "/far/job-aaab"))))
    assert known.asked() == []
    assert known.runs() == runs
    run, _ = runs
    assert (run.run, run.path, run.login) == ("job-aaaa", "/far/job-aaaa", HPC)
    known.note_asked(asked())
    assert known.settle(asked(), Outcome(error=("given up",), exit_code=4)) == []
    assert known.asked() == []


def test_answers_are_kept(state, tmp_path):
    folder = RunFolder(tmp_path / "job-aaaa").succeeded()
    status = derive(read_facts(folder.path))
    known.keep_answers("hpc", {"job-aaaa": Seen(5.0, status)})
    assert known.answers("hpc") == {"job-aaaa": Seen(5.0, status)}
    assert known.answers("other") == {}
    (state / "answers" / "hpc.json").write_text('{"job-aaaa": {"at": 1, "status": {"state": "of-a-newer-version"}}}')
    assert known.answers("hpc") == {}
    assert Path(known.index_folder()).stat().st_mode & 0o777 == 0o700
