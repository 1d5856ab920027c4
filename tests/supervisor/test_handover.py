"""Test who may hand an attempt to its cluster, and what is left of one that never gets there."""

import time

import msgspec
import pytest

from launcher.run.attempts import read_intent
from launcher.run.durable import read_record, write_record
from launcher.run.identity import this_process
from launcher.run.layout import BatchDir
from launcher.run.records import AttemptEnd, Handle
from launcher.states import State
from launcher.supervisor.handover import Handover, is_open
from tests.run_folder import RunFolder, dead_process, of_another_machine


@pytest.fixture
def folder(tmp_path):
    return RunFolder(tmp_path / "train-aaaa").plan().intent(by=this_process())


def handover_of(folder):
    return Handover.of(folder.run, folder.run.attempt(1))


def aged(folder, seconds):
    """Make the submitter's beginning this old."""
    path = folder.run.attempt(1).intent
    intent = read_intent(folder.run.attempt(1))
    write_record(path, msgspec.structs.replace(intent, created_at=time.time() - seconds))
    return folder


def test_a_submitter_that_lives_is_at_it_until_its_lock_says_otherwise(folder):
    handover = handover_of(aged(folder, 1e6))
    assert handover.is_in_hand(), "it has not begun"
    handover.lock.touch()
    assert handover.is_in_hand(), "its file is there, and not yet locked"
    with handover.held():
        assert handover.is_in_hand()
    assert not handover.is_in_hand(), "it could not do it, and lives"
    with handover.held():
        assert handover.is_in_hand(), "somebody else does it"


def test_a_submitter_that_was_killed_is_not_waited_for(folder):
    handover = handover_of(folder.intent(by=dead_process()))
    assert not handover.is_in_hand()
    with handover.held(), handover.held() as second:
        assert second is None, "of two that come after it, one does it"


def test_a_submitter_of_another_machine_is_waited_for_a_minute(folder):
    """Nobody here can tell whether it lives, and it may have been killed before it had a lock."""
    assert handover_of(folder.intent(by=of_another_machine())).is_in_hand()
    assert not handover_of(aged(folder, 61)).is_in_hand()
    with handover_of(folder).held():
        assert handover_of(folder).is_in_hand(), "its client may be under way"
    folder.intent(by=of_another_machine())
    assert not handover_of(folder).is_in_hand(), "its lock says that it is at it no more"


def test_a_submitter_that_fails_lets_go(folder):
    with pytest.raises(ZeroDivisionError), handover_of(folder).held():
        raise ZeroDivisionError
    assert not handover_of(folder).is_in_hand()


@pytest.mark.parametrize("word", ["handle", "end"])
def test_it_is_open_until_anybody_has_written_what_became_of_it(folder, word):
    assert handover_of(folder).is_open()
    if word == "end":
        folder.end(State.CANCELLED)
    else:
        folder.write(folder.run.attempt(1).handle, Handle("slurm", job_id="7"))
    assert not handover_of(folder).is_open()


def test_what_is_given_up_ends_those_that_are_open_alone(folder, tmp_path):
    """Of runs that were submitted together one has begun, and one was never made."""
    began = RunFolder(tmp_path / "train-bbbb").plan().intent()
    began.write(began.run.attempt(1).handle, Handle("slurm", job_id="7_1"))
    batch = tmp_path / ".batch-tick"
    batch.mkdir()
    write_record(BatchDir(batch).runs, [str(folder.path), str(began.path), str(tmp_path / "train-cccc")])
    attempt = folder.run.attempt(1)
    write_record(attempt.intent, msgspec.structs.replace(read_intent(attempt), batch=str(batch)))
    handover = handover_of(folder)
    assert handover.lock == BatchDir(batch).lock
    assert [is_open(*member) for member in handover.members] == [True, False, False]
    handover.give_up("the queue takes no jobs")
    end = read_record(attempt.end, AttemptEnd)
    assert (end.state, end.message) == (State.FAILED, "the queue takes no jobs")
    assert not began.run.attempt(1).end.exists() and not handover.is_open()


def test_what_is_withdrawn_was_cancelled(folder):
    handover_of(folder).withdraw()
    assert read_record(folder.run.attempt(1).end, AttemptEnd).state is State.CANCELLED
