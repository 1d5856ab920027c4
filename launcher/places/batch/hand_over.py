"""What is handed to a scheduler as one job: one attempt, or several runs' first attempts as an array. Exactly once.

intent (fsync) ─ lock ─ which cluster (fsync) ─ its client, which holds the lock too ─ job id (fsync) ─ unlock
Whoever finds an intent without a job id, and the lock free, knows that no client is under way: the scheduler has a job
with this ticket's mark, or it has none. Several clusters may share one home, and none knows anything of another's jobs:
hence the note of which one it is.
"""

import os
from collections.abc import Iterator
from functools import cached_property
from pathlib import Path

import msgspec

from launcher.places.batch.batch import BatchSystem, Phase, QueuedJob, Ticket
from launcher.plan.queueing import begun
from launcher.run.attempts import attempts, read_intent, read_plan
from launcher.run.avoided import avoided
from launcher.run.durable import create_records, read_record, readable, write_bytes, write_record
from launcher.run.layout import BATCH_PREFIX, AttemptDir, BatchDir, RunDir
from launcher.run.locks import locked
from launcher.run.records import Handle, Intent, Site
from launcher.supervisor.attempt_end import is_cancelled

_STILL_AT_IT = (Phase.RUNNING, Phase.ENDING)  # it may yet be put back, and then it is the one that goes on


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


def hand_over(queue: BatchSystem, job: BatchJob, *, again: bool = False) -> bool:
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
        known = _known(queue, job) if again else None
        if known is not None and known.phase in _STILL_AT_IT:
            return False
        made = known or _Known(_submit(queue, job, lock), job.ticket.text)
        handles = {
            attempt: Handle(queue.kind, job_id=_name(queue, job, made.id, index), ticket=made.ticket)
            for index, attempt in missing
        }
        # But those of jobs that have started already, and said so themselves.
        create_records(job.where, {attempt.handle: handle for attempt, handle in handles.items()})
        for attempt, handle in handles.items():
            if handle.job_id is not None and (attempt.end.exists() or is_cancelled(attempt)):
                queue.cancel(handle.job_id)  # meanwhile, when there was no job yet that could have been ended
    return True


class _Known(msgspec.Struct, frozen=True):
    """A job that is there, and the ticket that is on it. `phase`: of an older job of the run."""

    id: str
    ticket: str
    phase: Phase | None = None


def _name(queue: BatchSystem, job: BatchJob, made: str, index: int) -> str:
    return made if job.ticket.array is None else queue.name_of(made, index)


def _is_open(run: RunDir, attempt: AttemptDir) -> bool:
    return run.plan.exists() and not attempt.handle.exists() and not attempt.end.exists()


def _known(queue: BatchSystem, job: BatchJob) -> _Known | None:
    """What the scheduler says now: an answer from before we had the lock may be older than the job.

    An attempt that follows another may be the older job's, put back by a controller that did not answer in time.
    """
    jobs, ticket = queue.jobs(), job.ticket.text
    for one in jobs:
        if ticket in one.tickets:
            return _Known(one.id if one.element is None else one.element[0], ticket)
    run, attempt = job.members[0]
    if read_intent(attempt).reason != "requeue":
        return None
    older = ((one, own) for one in jobs if one.phase is not Phase.ENDED and (own := ticket_on(one, run)))
    return next((_Known(one.id, own, one.phase) for one, own in older), None)


def ticket_on(job: QueuedJob, run: RunDir) -> str:
    """The ticket of this run that the job has; "" where it is another's."""
    index = job.element[1] if job.element is not None else None
    return next((ticket for ticket, own in tickets_of(run) if ticket in job.tickets and own == index), "")


def tickets_of(run: RunDir) -> Iterator[tuple[str, int | None]]:
    """Every ticket of the run that can be read, the newest first, and which element it has where that is an array's.

    An attempt after a requeue is in the job of the one before it.
    """
    for attempt in reversed(attempts(run)):
        intent = readable(attempt.intent, Intent)
        if intent is not None and not intent.batch:
            yield intent.ticket, None
    for folder in sorted(run.path.parent.glob(f"{BATCH_PREFIX}*")):
        names = [Path(path).name for path in readable(BatchDir(folder).runs, list[str]) or []]
        if run.path.name in names:
            yield folder.name.removeprefix(BATCH_PREFIX), names.index(run.path.name)


def _submit(queue: BatchSystem, job: BatchJob, lock: int) -> str:
    run, attempt = next((run, attempt) for run, attempt in job.members if run.plan.exists())
    plan = read_plan(run, attempt.number)
    if read_intent(attempt).reason == "requeue":
        plan = begun(plan)
    script = queue.script(plan, job.ticket, job.where, [blame.host for blame in avoided(run)])
    write_bytes(job.script, script.encode(), fsync=False)  # it is read now, and never again
    environ = {name: value for name, value in os.environ.items() if name not in plan.secrets}
    return queue.submit(job.script, environ, lock)


class ThisCluster:
    """The cluster that answers here; asked for its name at most once, and only where it matters."""

    def __init__(self, queue: BatchSystem) -> None:
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
        intent = readable(one.intent, Intent)
        site = readable(BatchDir(Path(intent.batch)).site if intent is not None and intent.batch else one.site, Site)
        if site is not None:
            return site.cluster
    return ""
