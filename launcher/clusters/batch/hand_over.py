"""What is handed to a scheduler as one job: one attempt, or several runs' first attempts as an array. Exactly once.

intent (fsync) ─ lock ─ which cluster (fsync) ─ its client, which holds the lock too ─ job id (fsync) ─ unlock
Whoever finds an intent without a job id, and the lock free, knows that no client is under way: the scheduler has a job
with this ticket's mark, or it has none. Several clusters may share one home, and none knows anything of another's jobs:
hence the note of which one it is.
"""

import os
from functools import cached_property
from pathlib import Path

import msgspec

from launcher.clusters.batch.queue import Queue, Submitting, Ticket
from launcher.rundir.attempts import read_intent, read_plan
from launcher.rundir.avoided import avoided
from launcher.rundir.durable import create_records, read_record, write_bytes, write_record
from launcher.rundir.layout import AttemptDir, BatchDir, RunDir
from launcher.rundir.locks import locked
from launcher.rundir.records import Handle, Intent, Site


class BatchJob(msgspec.Struct, frozen=True):
    """One job to be: its ticket, what its script is told, and whose attempts it carries."""

    ticket: Ticket
    where: Path  # the run's folder, or the array's
    script: Path
    lock: Path
    site: Path
    members: tuple[tuple[RunDir, AttemptDir], ...]  # of an array: by index


def batch_job_of(run: RunDir, attempt: AttemptDir) -> BatchJob:
    """The job that this attempt is, or is part of."""
    intent = read_intent(attempt)
    if not intent.batch:
        return BatchJob(
            Ticket(intent.ticket), run.path, attempt.job_script, attempt.job_lock, attempt.site, ((run, attempt),)
        )
    batch = BatchDir(Path(intent.batch))
    runs = [RunDir(Path(path)) for path in read_record(batch.runs, list[str]) or []]
    members = tuple((one, one.attempt(1)) for one in runs)
    return BatchJob(Ticket(intent.ticket, len(members)), batch.path, batch.script, batch.lock, batch.site, members)


def run_of_element(where: Path, index: int | None) -> RunDir | None:
    """The run of this element of an array, or the run itself; None where it was never made."""
    batch = BatchDir(where)
    if index is None or not batch.runs.exists():
        return RunDir(where)
    run = RunDir(Path((read_record(batch.runs, list[str]) or [])[index]))
    return run if run.plan.exists() else None


def hand_over(queue: Queue, job: BatchJob, *, again: bool = False) -> bool:
    """Have the scheduler take this job. `again`: somebody may have submitted it before, so it is looked for first.

    False where somebody is at it right now. Raises NotStarted where it is refused, Unreachable where nobody can tell.
    """
    with locked(job.lock) as lock:
        if lock is None:
            return False
        missing = [(index, attempt) for index, (run, attempt) in enumerate(job.members) if _is_open(run, attempt)]
        if not missing:
            return True
        ThisCluster(queue).note(job.site)
        known = (_known_id(queue, job.ticket) if again else None) or _submit(queue, job, lock)
        names = [known if job.ticket.array is None else queue.name_of(known, index) for index, _ in missing]
        handles = {
            attempt.handle: Handle(queue.kind, job_id=name, ticket=job.ticket.text)
            for name, (_, attempt) in zip(names, missing, strict=True)
        }
        create_records(job.where, handles)  # but those of jobs that have started already, and said so themselves
    return True


def _is_open(run: RunDir, attempt: AttemptDir) -> bool:
    return run.plan.exists() and not attempt.handle.exists() and not attempt.end.exists()


def _known_id(queue: Queue, ticket: Ticket) -> str | None:
    """What the scheduler says now: an answer from before we had the lock may be older than the job."""
    job = next((job for job in queue.jobs() if ticket.text in job.tickets), None)
    if job is None:
        return None
    return job.id if job.element is None else job.element[0]


def _submit(queue: Queue, job: BatchJob, lock: int) -> str:
    run, attempt = next((run, attempt) for run, attempt in job.members if run.plan.exists())
    plan = read_plan(run, attempt.number)
    script = queue.script(plan, job.ticket, job.where, [blame.host for blame in avoided(run)])
    write_bytes(job.script, script.encode(), fsync=False)  # it is read now, and never again
    environ = {name: value for name, value in os.environ.items() if name not in plan.secrets}
    return queue.submit(job.script, environ, lock)


class ThisCluster:
    """The cluster that answers here; asked for its name at most once, and only where it matters."""

    def __init__(self, queue: Submitting) -> None:
        self._queue = queue

    @cached_property
    def name(self) -> str:
        """What its controller calls it; "" where it does not say. Raises Unreachable."""
        return self._queue.site()

    def note(self, site: Path) -> None:
        """Write down, before the job is handed over, where to."""
        if not site.exists():
            write_record(site, Site(self.name))

    def elsewhere(self, run: RunDir, attempt: AttemptDir) -> str:
        """Why nothing can be told of this attempt here: its job is on another cluster. "" where that is not known."""
        there = _noted(run, attempt)
        if not there or not self.name or there == self.name:
            return ""
        called = self._queue.called
        return f"its job is on the {called} cluster {there}, and this is {self.name}: ask on a login node of {there}"


def _noted(run: RunDir, attempt: AttemptDir) -> str:
    """Where the newest job was handed to: an attempt after a requeue is in the job of the one before."""
    for number in range(attempt.number, 0, -1):
        one = run.attempt(number)
        intent = read_record(one.intent, Intent)
        site = read_record(BatchDir(Path(intent.batch)).site if intent is not None and intent.batch else one.site, Site)
        if site is not None:
            return site.cluster
    return ""
