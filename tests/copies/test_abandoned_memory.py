"""Memory of a run that is over is given back by whoever comes next; that of one that may go on is left alone."""

import subprocess
from dataclasses import dataclass
from pathlib import Path

import msgspec
import pytest

from launcher.copies import memory_tier
from launcher.copies.memory_tier import open_tier, sweep
from launcher.run.durable import write_record
from launcher.run.identity import process_id, this_process
from launcher.run.layout import RunDir
from launcher.run.records import AttemptEnd, Handle, ProcessId
from launcher.states import State


def dead() -> ProcessId:
    with subprocess.Popen(["sleep", "60"]) as process:
        found = process_id(process.pid)
        process.kill()
    assert found is not None
    return found


@dataclass
class Left:
    """A folder in memory, and the run that it is of."""

    memory: Path
    run: RunDir
    path: Path

    def end(self, state: State) -> None:
        write_record(self.run.attempt(1).end, AttemptEnd(state, None, 0, 1.0))

    def keep(self, supervisor: ProcessId | None) -> None:
        write_record(self.run.attempt(1).handle, Handle("local", supervisor=supervisor))

    @property
    def is_swept(self) -> bool:
        swept = sweep(self.memory)
        assert swept == ([] if self.path.exists() else [self.path])
        return swept == [self.path]


@pytest.fixture
def left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Left:
    """Return what an agent that was killed has left in memory."""
    memory, run = tmp_path / "shm", RunDir(tmp_path / "runs" / "job-abcd")
    memory.mkdir()
    attempt = run.attempt(1)
    attempt.path.mkdir(parents=True)
    attempt.intent.write_text("{}")
    monkeypatch.setattr(memory_tier, "this_process", dead)
    path = open_tier(run.path, 0, 1, inherit=False, memory=memory)
    (path / "step-00000001").mkdir()
    return Left(memory, run, path)


@pytest.mark.parametrize("state", [State.SUCCEEDED, State.FAILED, State.CANCELLED])
def test_of_a_run_that_has_ended(left: Left, state: State) -> None:
    left.end(state)
    assert left.is_swept


def test_of_a_run_whose_supervisor_was_killed_too(left: Left) -> None:
    left.keep(dead())
    assert left.is_swept


def test_of_a_run_that_was_removed_but_not_of_one_whose_disk_is_away(left: Left) -> None:
    left.run.path.rename(left.run.path.with_name("elsewhere"))
    runs = left.run.path.parent
    runs.rename(runs.with_name("away"))
    assert not left.is_swept
    runs.mkdir()
    assert left.is_swept


def test_not_where_a_successor_may_come_by_itself(left: Left) -> None:
    assert not left.is_swept  # nobody knows
    left.keep(None)
    assert not left.is_swept
    left.end(State.QUEUED)
    assert not left.is_swept
    left.keep(this_process())
    assert not left.is_swept


def test_not_where_its_run_cannot_be_read_and_that_hinders_nobody(left: Left, monkeypatch: pytest.MonkeyPatch) -> None:
    def unreadable(_: RunDir) -> None:
        raise PermissionError(13, "Permission denied")

    left.end(State.FAILED)
    monkeypatch.setattr(memory_tier, "newest", unreadable)
    assert not left.is_swept


@pytest.mark.parametrize("agent", ["lives", "is another machine's"])
def test_not_where_the_agent_may_live(left: Left, monkeypatch: pytest.MonkeyPatch, agent: str) -> None:
    left.end(State.FAILED)
    other = msgspec.structs.replace(dead(), host="elsewhere")
    monkeypatch.setattr(memory_tier, "this_process", lambda: this_process() if agent == "lives" else other)
    assert open_tier(left.run.path, 0, 1, inherit=False, memory=left.memory) == left.path
    assert not left.is_swept


def test_strangers_folders_are_let_be(left: Left) -> None:
    left.end(State.FAILED)
    for name in ("launch-x", f"{left.path.name}.bak", left.path.name.replace("abcd", "efgh"), "other"):
        (left.memory / name).mkdir()
        (left.memory / name / "owner.json").write_bytes((left.path / "owner.json").read_bytes())
    (left.memory / left.path.name.replace("n00", "n01")).mkdir()  # nobody knows whose
    (left.memory / left.path.name.replace("n00", "n02")).symlink_to(left.memory / "other")
    before = {path.name for path in left.memory.iterdir()}
    assert left.is_swept
    assert {path.name for path in left.memory.iterdir()} == before - {left.path.name}


def test_where_there_is_no_memory_there_is_nothing_to_do(tmp_path: Path) -> None:
    assert sweep(tmp_path / "none") == []
