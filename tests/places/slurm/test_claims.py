"""Which attempt a start of a job carries out, and what is said of a start before it that left no word."""

import msgspec
import pytest

from launcher.places.batch.job.claims import claim, next_attempt
from launcher.places.slurm.queue import SlurmSystem
from launcher.run.attempts import attempts, new_attempt
from launcher.run.durable import read_lines, read_record, write_record
from launcher.run.records import AttemptEnd, Event, Handle, ProcessId
from launcher.states import Cause, State

DOWN = """\
case "$*" in
    *node0) echo "NodeName=node0 NodeAddr=192.0.2.1 State=DOWN* Reason=Not responding" ;;
    *) echo "Node ${*##* } not found"; exit 1 ;;
esac"""


@pytest.mark.parametrize(("job", "is_new"), [("7", False), ("9", True)], ids=["again", "anew"])
def test_an_attempt_whose_submitter_died_is_the_first_jobs_that_starts_with_that_jobs_submit_token(begun, job, is_new):
    """Of a job that starts again the comment says what it said before, whatever the attempt was to be known by."""
    write_record(begun.attempt.end, AttemptEnd(State.QUEUED, Cause.NODE_LOST, 15, 12.0))
    _, intent = new_attempt(begun.run, "slurm", "requeue", Cause.NODE_LOST, kind="slurm")
    attempt = claim(SlurmSystem(), begun.run, job)
    handle = read_record(attempt.handle, Handle)
    assert (attempt.number, handle.job_id) == (2, job)
    assert handle.submit_token == (intent.submit_token if is_new else begun.submit_token)


@pytest.mark.parametrize(
    ("written", "cause"), [(True, Cause.NODE_LOST), (False, Cause.PREEMPTED)], ids=["the plan", "no plan yet"]
)
def test_a_lost_first_node_is_asked_for_by_slurms_name_of_it(begun, slurm_programs, written, cause):
    """Whatever the machine calls itself. Where only that is known, and Slurm has no such node, nothing was lost."""
    slurm_programs(scontrol=DOWN)
    itself = ProcessId("node0.hpc.example.org", "its-boot", 1, 1)
    handle = read_record(begun.attempt.handle, Handle)
    write_record(begun.attempt.handle, msgspec.structs.replace(handle, supervisor=itself))
    if not written:
        begun.attempt.plan.unlink()
    assert claim(SlurmSystem(), begun.run, begun.job).number == 2
    assert read_record(begun.attempt.end, AttemptEnd).cause is cause
    (failure,) = [event for event in read_lines(begun.run.events, Event) if event.kind == "failure"]
    assert ("node0, the first node, is down" in failure.text) == (cause is Cause.NODE_LOST)


def test_who_did_not_see_that_another_has_gone_on_opens_no_further_attempt(begun, capsys):
    """A supervisor that was cut off for a while: the job was started again meanwhile, or a new one was."""
    new_attempt(begun.run, "slurm", "requeue", Cause.NODE_LOST, kind="slurm")
    assert next_attempt(SlurmSystem(), begun.run, begun.attempt, Cause.NODE_LOST, "7") is None
    assert [one.number for one in attempts(begun.run)] == [1, 2]
    assert "attempt 2" in capsys.readouterr().err


def test_after_a_killed_batch_process_the_next_one_goes_on_in_the_same_job(begun):
    attempt = claim(SlurmSystem(), begun.run, begun.job, 9)
    assert (attempt.number, read_record(attempt.handle, Handle).job_id) == (2, begun.job)
    assert read_record(begun.attempt.end, AttemptEnd).state is State.QUEUED
    (failure,) = [event for event in read_lines(begun.run.events, Event) if event.kind == "failure"]
    assert (failure.cause, failure.text) == (Cause.NODE_LOST, "the batch process was killed by SIGKILL")
