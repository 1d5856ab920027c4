"""Submit one attempt, or several runs' first attempts as an array, to a scheduler as one job, exactly once: the job
carries a submit token, by which it is found if the submitter was killed. A Handover names the attempts of one job, and
their folder.

intent (fsync) ─ lock ─ which cluster (fsync) ─ its client, which holds the lock too ─ job id (fsync) ─ unlock

If there is an intent without a job id and the lock is free, no submitting command is running: the scheduler either has
a job with this token or has none. Several clusters may share one home directory, and none shows another's jobs, so the
record names the cluster.
"""

import os
from collections.abc import Iterator
from functools import cached_property
from pathlib import Path

import msgspec

from launcher.places.batch.batch import BatchSystem, Phase, QueuedJob, SubmitToken
from launcher.plan.queueing import begun
from launcher.run.attempts import attempts, read_plan
from launcher.run.avoided import avoided
from launcher.run.durable import create_records, read_record, readable, write_bytes, write_record
from launcher.run.layout import BATCH_PREFIX, AttemptDir, BatchDir, RunDir
from launcher.run.records import Handle, Intent, Site
from launcher.supervisor.attempt_end import is_cancelled
from launcher.supervisor.handover import Handover, is_open

_STILL_AT_IT = (Phase.RUNNING, Phase.ENDING)  # it may yet be requeued, and then it is the one that continues


def run_of_element(where: Path, index: int | None) -> RunDir | None:
    """Return the run of element `index` of the array whose folder is `where`; if `index` is None, return the run whose
    folder `where` is.

    Return None if that run was never created.
    """
    batch = BatchDir(where)
    if index is None or not batch.runs.exists():
        return RunDir(where)
    run = RunDir(Path((read_record(batch.runs, list[str]) or [])[index]))
    return run if run.plan.exists() else None


def hand_over(queue: BatchSystem, handover: Handover, *, again: bool = False) -> None:
    """Submit a job for the attempts of `handover` (one attempt, or the first attempts of an array's runs), and record
    its id. Do nothing if another process is doing so, or if no attempt lacks a job.

    With `again` an earlier submit may have succeeded, so the scheduler's jobs are searched for the token first. Raise
    NotStarted if the job is refused, and Unreachable if the result is unknown.
    """
    with handover.held() as lock:
        missing = [(index, one[1]) for index, one in enumerate(handover.members) if is_open(*one)]
        if lock is None or not missing:
            return
        ThisCluster(queue).note(handover.site)
        known = _known(queue, handover) if again else None
        if known is not None and known.phase in _STILL_AT_IT:
            return
        made = known or _FoundJob(_submit(queue, handover, lock), handover.intent.submit_token)
        handles = {
            attempt: Handle(queue.kind, job_id=_job_id(queue, handover, made.id, index), submit_token=made.submit_token)
            for index, attempt in missing
        }
        # Jobs that have started already have written their own.
        create_records(_folder(handover), {attempt.handle: handle for attempt, handle in handles.items()})
        for attempt, handle in handles.items():
            if handle.job_id is not None and (attempt.end.exists() or is_cancelled(attempt)):
                queue.cancel(handle.job_id)  # meanwhile, when there was no job yet that could have been ended


class _FoundJob(msgspec.Struct, frozen=True):
    """A job of the run that the scheduler already has, with its submit token. `phase` is None for a job of the attempt
    itself; for one of an older attempt it shows whether that job still runs or was requeued for this attempt.
    """

    id: str
    submit_token: str
    phase: Phase | None = None


def _folder(handover: Handover) -> Path:
    """Return the folder that the job's script names as the one to work for: the run's or, for an array of several runs,
    the one that they share.
    """
    return handover.path if handover.intent.batch else handover.members[0][0].path


def _job_id(queue: BatchSystem, handover: Handover, made: str, index: int) -> str:
    """Return the job id for number `index` of the handover's runs: `made`, the submitted job's id, or if the job is an
    array, the id of its element `index`.
    """
    return queue.name_of(made, index) if handover.intent.batch else made


def _known(queue: BatchSystem, handover: Handover) -> _FoundJob | None:
    """Return the job that an earlier submit of this handover made, found by the submit token, or None if there is none.

    The scheduler is asked again, because an answer from before the handover's lock was held may be out of date. For an
    attempt that follows another, any job of the run that has not ended counts as well, because a controller may have
    requeued it late.
    """
    jobs, submit_token = queue.jobs(), handover.intent.submit_token
    for one in jobs:
        if submit_token in one.submit_tokens:
            return _FoundJob(one.id if one.element is None else one.element[0], submit_token)
    if handover.intent.reason != "requeue":
        return None
    run, _ = handover.members[0]
    older = ((one, own) for one in jobs if one.phase is not Phase.ENDED and (own := submit_token_on(one, run)))
    return next((_FoundJob(one.id, own, one.phase) for one, own in older), None)


def submit_token_on(job: QueuedJob, run: RunDir) -> str:
    """Return which of the run's submit tokens the job shows, or "" if it shows none of them, so that it must not be
    taken for this run's. In an array the job must also be the element that has the run's number.
    """
    index = job.element[1] if job.element is not None else None
    return next(
        (
            submit_token
            for submit_token, own in submit_tokens_of(run)
            if submit_token in job.submit_tokens and own == index
        ),
        "",
    )


def submit_tokens_of(run: RunDir) -> Iterator[tuple[str, int | None]]:
    """Yield, for every attempt of the run, the newest first, the submit token that its job was submitted with and, if
    the job was an array, the number of the run's element in it, else None.

    A job that the scheduler requeued shows the token of an earlier attempt than the newest, so a caller that looks for
    the run's job has to compare all of them.
    """
    for attempt in reversed(attempts(run)):
        intent = readable(attempt.intent, Intent)
        if intent is not None and not intent.batch:
            yield intent.submit_token, None
    for folder in sorted(run.path.parent.glob(f"{BATCH_PREFIX}*")):
        names = [Path(path).name for path in readable(BatchDir(folder).runs, list[str]) or []]
        if run.path.name in names:
            yield folder.name.removeprefix(BATCH_PREFIX), names.index(run.path.name)


def _submit(queue: BatchSystem, handover: Handover, lock: int) -> str:
    """Write the batch script of the handover's attempts, submit it and return the job's id. The submitting command
    inherits the descriptor `lock`, so that the lock is held as long as it lives. Raise NotStarted if the job is
    refused, and another LaunchError if it is not known whether it was accepted, or under which id.
    """
    run, attempt = next((run, attempt) for run, attempt in handover.members if run.plan.exists())
    plan = read_plan(run, attempt.number)
    if handover.intent.reason == "requeue":
        plan = begun(plan)
    submit_token = SubmitToken(handover.intent.submit_token, len(handover.members) if handover.intent.batch else None)
    script = queue.script(plan, submit_token, _folder(handover), [exclusion.host for exclusion in avoided(run)])
    write_bytes(handover.script, script.encode(), fsync=False)  # it is read now, and never again
    environ = {name: value for name, value in os.environ.items() if name not in plan.secrets}
    return queue.submit(handover.script, environ, lock)


class ThisCluster:
    """The cluster whose scheduler answers on this machine. Its name is compared with that recorded for a run's job, as
    a job on another cluster cannot be seen here; the scheduler is asked for the name once, when it is first needed.
    """

    def __init__(self, queue: BatchSystem) -> None:
        self._queue = queue

    @cached_property
    def name(self) -> str:
        """Return the name that the scheduler gives its cluster, or "" if it has none; raise Unreachable if it does not
        answer.
        """
        return self._queue.site()

    def note(self, site: Path) -> None:
        """Write the name of this cluster, to which a job is about to be submitted, into the file `site`, unless that
        exists.
        """
        if not site.exists():
            write_record(site, Site(self.name))

    def elsewhere(self, run: RunDir, attempt: AttemptDir) -> str:
        """Return a message for the user if the attempt's job cannot be seen here because it was submitted to another
        cluster, else "".
        """
        there = _noted(run, attempt)
        if not there or not self.name or there == self.name:
            return ""
        called = self._queue.called
        return f"its job is on the {called} cluster {there}, and this is {self.name}: ask on a login node of {there}"


def _noted(run: RunDir, attempt: AttemptDir) -> str:
    """Return the name of the cluster, as its controller gives it, to which the run's newest job was submitted, or "" if
    none is recorded.

    It is read from the newest record among those of `attempt` and the attempts before it: if the batch system requeues
    a job, a new attempt begins without a submission, so that the record is in an earlier attempt.
    """
    for number in range(attempt.number, 0, -1):
        one = run.attempt(number)
        intent = readable(one.intent, Intent)
        site = readable(BatchDir(Path(intent.batch)).site if intent is not None and intent.batch else one.site, Site)
        if site is not None:
            return site.cluster
    return ""
