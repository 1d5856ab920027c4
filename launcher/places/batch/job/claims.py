"""Decide which attempt a start of a batch job runs (a job may be started several times, by requeues), such that only
one process ever runs an attempt.
"""

import contextlib
import signal
import sys

from launcher.errors import Refused
from launcher.places.batch.batch import BatchSystem
from launcher.places.batch.job.nodes import cause_without_end_record
from launcher.plan.model import Plan
from launcher.run.attempts import new_attempt, newest, read_intent, read_plan
from launcher.run.durable import create_record, read_record, readable, write_record
from launcher.run.identity import this_process
from launcher.run.layout import AttemptDir, RunDir
from launcher.run.records import AttemptEnd, Handle
from launcher.states import Cause, State
from launcher.supervisor.allocation import claim_attempt
from launcher.supervisor.attempt_end import cancelled, is_cancelled, settle, write_end, write_failure


def claim(queue: BatchSystem, run: RunDir, job: str, killed_by: int | None = None) -> AttemptDir | None:
    """Return the attempt that this start of the job runs. Print why and return None if there is none: the newest
    attempt belongs to another job, the run has ended or was cancelled, or no further attempt may start here.

    `killed_by` is the signal that killed the previous batch process of the same start, or None. It is recorded as the
    cause if that process has written no end of its attempt; with None the scheduler is asked for the cause.
    """
    attempt = newest(run)
    if attempt is None:
        return None
    owner = owner_of(queue, run, attempt, job)
    if owner != job:
        return _report_nothing_to_do(f"attempt {attempt.number} is job {owner}'s, not ours ({job})")
    end = read_record(attempt.end, AttemptEnd)
    if end is not None and end.state.ended:
        settle(run, attempt, end, readable(run.plan, Plan))
        return _report_nothing_to_do(f"the run has ended: {end.message or end.state}")
    if is_cancelled(attempt):
        if end is None:
            cancel(run, attempt)
        return _report_nothing_to_do("the run was cancelled")
    if end is None and not attempt.started.exists() and _take(queue, attempt, job, submit_token_of(attempt)):
        return attempt
    if end is None:  # an earlier start of this job, or batch process of this start, which wrote no end
        end = _end_previous_attempt(queue, run, attempt, killed_by)
    if end.state is not State.QUEUED:
        return _report_nothing_to_do(end.message)
    return next_attempt(queue, run, attempt, end.cause, job)


def next_attempt(
    queue: BatchSystem, run: RunDir, before: AttemptDir, cause: Cause | None, job: str
) -> AttemptDir | None:
    """Open the next attempt after `before`, which has ended because of `cause` (None: none is known), as one that
    continues in this job, whose id is `job`; return it. The caller then runs it. If another process has opened or
    started one meanwhile, print that there is nothing to do, and return None.
    """
    plan = read_plan(run, before.number)
    try:
        attempt, _ = new_attempt(run, plan.cluster, "requeue", cause, kind=queue.kind, after=before.number)
    except Refused as later:
        return _report_nothing_to_do(str(later.lines[0]))
    return (
        attempt
        if _take(queue, attempt, job, submit_token_of(before))
        else _report_nothing_to_do(f"attempt {attempt.number} was started by another process")
    )


def submit_token_of(attempt: AttemptDir) -> str:
    """Return the submit token that the attempt's job shows, or "" if no job, or no token of it, is recorded."""
    handle = read_record(attempt.handle, Handle)
    return handle.submit_token if handle is not None else ""


def owner_of(queue: BatchSystem, run: RunDir, attempt: AttemptDir, job: str) -> str | None:
    """Return the id of the job to which the attempt belongs. If no job is recorded for the attempt yet, first record
    `job`.

    Return None if the record names no job.
    """
    with contextlib.suppress(FileExistsError):
        create_record(
            attempt.handle, Handle(queue.kind, job_id=job, submit_token=_submit_token_of_job(run, attempt, job))
        )
    handle = read_record(attempt.handle, Handle)
    return handle.job_id if handle is not None else None


def _submit_token_of_job(run: RunDir, attempt: AttemptDir, job: str) -> str:
    """Return the submit token that this job shows: the previous attempt's if that was in the same job, else this
    attempt's own.
    """
    earlier = (read_record(run.attempt(number).handle, Handle) for number in range(attempt.number - 1, 0, -1))
    before = next((handle for handle in earlier if handle is not None), None)
    return before.submit_token if before is not None and before.job_id == job else read_intent(attempt).submit_token


def _take(queue: BatchSystem, attempt: AttemptDir, job: str, submit_token: str) -> bool:
    """Claim the attempt for this process, if no other process has; return whether it could. Only the process that
    claimed an attempt may run it. Record `job`, with this submit token, as the attempt's job then.
    """
    if not claim_attempt(attempt.started):
        return False
    write_record(attempt.handle, Handle(queue.kind, supervisor=this_process(), job_id=job, submit_token=submit_token))
    return True


def _report_nothing_to_do(why: str) -> AttemptDir | None:
    """Print why this start of the job has nothing to do, and return None."""
    print(f"nothing to do: {why}", file=sys.stderr)
    return None


def cancel(run: RunDir, attempt: AttemptDir) -> None:
    """Write an end record by which the attempt was cancelled, in place of any other, and the run's state and event."""
    write_end(run, attempt, cancelled(), read_plan(run, attempt.number))


def _end_previous_attempt(queue: BatchSystem, run: RunDir, attempt: AttemptDir, killed_by: int | None) -> AttemptEnd:
    """Write the end of an attempt whose job or process was killed before it could write one, and return it.

    `killed_by` is the signal that killed the batch process; if it is None, the scheduler is asked for the cause.
    """
    if killed_by is None:
        cause, text = cause_without_end_record(queue, _first_host(attempt), attempt.started.stat().st_mtime)
    else:
        cause, text = Cause.NODE_LOST, f"the batch process was killed by {signal.Signals(killed_by).name}"
    return write_failure(run, attempt, read_plan(run, attempt.number), cause, text)


def _first_host(attempt: AttemptDir) -> str:
    """Return the name of the host on which the attempt's supervisor ran, as the scheduler calls it; the host's own name
    may differ.

    If the supervisor died before it wrote the scheduler's names into the plan, return the host's own name, as it is
    recorded, or "" if no supervisor is recorded.
    """
    plan = read_record(attempt.plan, Plan)
    host = plan.nodes[0].host if plan is not None else ""
    handle = read_record(attempt.handle, Handle)
    return host or (handle.supervisor.host if handle is not None and handle.supervisor is not None else "")
