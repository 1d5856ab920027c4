"""A batch process that cannot go on without a record that a disk has damaged: what it leaves for those who ask."""

import io

import pytest

from launcher.errors import Exit
from launcher.places.batch.batch import JobStart
from launcher.places.batch.job.batch_process import BatchSupervisor
from launcher.places.slurm.queue import SlurmSystem
from launcher.run.attempts import new_attempt
from launcher.run.durable import Damaged, read_record, write_record
from launcher.run.identity import this_process
from launcher.run.records import AttemptEnd, Handle, RunState
from launcher.states import Cause, State
from launcher.supervisor import strategy
from launcher.supervisor.__main__ import supervise


@pytest.fixture
def queue(monkeypatch):
    monkeypatch.setattr(SlurmSystem, "hosts", lambda _: ["node0"])
    monkeypatch.setattr(strategy, "log_to", lambda _: None)
    return SlurmSystem()


def supervised(queue, begun):
    """Run the supervisor of one start of the job."""

    class Job(BatchSupervisor):
        def supervise(self, go):
            return self.run_attempts(queue, JobStart(begun.job, None), None, None)

    return supervise(Job(begun.run.path, []), io.BytesIO())


def again(queue, begun):
    """The job starts after an attempt that is to be followed by another."""
    write_record(begun.attempt.end, AttemptEnd(State.QUEUED, Cause.KILLED, Exit.KILLED, 12.0, "a new attempt follows"))
    return supervised(queue, begun)


def test_a_damaged_fence_is_named_by_the_last_word(queue, begun):
    """Slurm said that the job had failed, and we that the run was lost."""
    begun.run.fence.write_bytes(b"")
    with pytest.raises(Damaged):
        again(queue, begun)
    end = read_record(begun.run.attempt(2).end, AttemptEnd)
    assert (end.state, end.cause) == (State.FAILED, Cause.LAUNCHER_FAULT)
    assert str(begun.run.fence) in end.message
    assert read_record(begun.run.state, RunState).message == end.message


@pytest.mark.parametrize("follows", [False, True], ids=["of this attempt", "of the one before"])
def test_a_damaged_plan_is_named_though_the_attempt_that_needs_it_has_not_begun(queue, begun, follows):
    """The run stayed in the queue for ever, where there was no job any more."""
    last = new_attempt(begun.run, "slurm", "requeue", Cause.KILLED, kind="slurm")[0] if follows else begun.attempt
    begun.attempt.plan.write_bytes(bytes(40))
    with pytest.raises(Damaged):
        again(queue, begun)
    end = read_record(last.end, AttemptEnd)
    assert end.state is State.FAILED and str(begun.attempt.plan) in end.message


def test_of_an_attempt_that_is_another_s_a_damaged_record_ends_nothing(queue, begun):
    """Who was cut off reads what is of the past, and the run goes on elsewhere."""
    attempt, _ = new_attempt(begun.run, "slurm", "requeue", Cause.NODE_LOST, kind="slurm")
    write_record(attempt.started, this_process())
    for path in (attempt.started, attempt.intent):
        path.write_bytes(path.read_bytes().replace(this_process().boot_id.encode(), b"another-boot"))
    attempt.handle.write_bytes(b"")
    with pytest.raises(Damaged):
        supervised(queue, begun)
    assert not attempt.end.exists()
    assert read_record(begun.attempt.handle, Handle) is not None
