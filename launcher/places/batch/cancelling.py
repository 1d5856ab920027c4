"""Cancel a run in a batch queue: first ask its own processes, by a file in its folder and a signal, then end its job.
Only a job that shows the run's submit token is ended, because a job id may by now belong to another job.
"""

import contextlib
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from launcher.errors import Unreachable
from launcher.places.batch.batch import SUBMIT_S, BatchSystem, Phase, QueuedJob
from launcher.places.batch.hand_over import ThisCluster, submit_token_on, submit_tokens_of
from launcher.places.place import CancelReport
from launcher.plan.model import Plan
from launcher.run.attempts import newest
from launcher.run.durable import readable
from launcher.run.layout import BATCH_PREFIX, AttemptDir, BatchDir, RunDir
from launcher.run.locks import locked
from launcher.run.records import AttemptEnd, Handle, Intent
from launcher.run.registry import registered
from launcher.spec.model import Recovery
from launcher.supervisor.attempt_end import CANCEL_SURE_S, ask_to_stop, grace_s_of, has_ended, write_cancelled

_GONE_S = 60.0
_STEP_S = 0.1
_LOOK_S = 1.0
_SHOWN = 8


class Cancelling:
    """A user's request to cancel an attempt of a run, and how it is carried out."""

    def __init__(self, queue: BatchSystem, run: RunDir, attempt: AttemptDir, plan: Plan | None) -> None:
        self._queue = queue
        self._run, self._attempt, self._plan = run, attempt, plan

    def carry_out(self) -> CancelReport:
        """Cancel the run, wait until all its jobs have ended, and return a report: which jobs were ended, and on which
        hosts, because they are down, processes may run a little longer.

        Raise Unreachable if the scheduler does not answer, if a job does not end within a minute, or if a job may be
        another run's; the request to stop stays on disk.
        """
        if self._has_ended():
            return CancelReport((), already=True)
        ask_to_stop(self._attempt, "cancel")
        try:
            return self._end_jobs_without_new_submits()
        except Unreachable as error:
            hint = "hint: if the run is on its nodes it reads the request to end in its folder within seconds"
            raise Unreachable(*error.lines, hint) from error

    def _end_jobs_without_new_submits(self) -> CancelReport:
        """End the run's jobs and return the report, while holding the submit lock, so that no process submits another
        one. Raise Unreachable if the scheduler does not answer, or a submit under way takes too long.
        """
        with self._no_submit_under_way():
            return self._end_all()

    def _end_all(self) -> CancelReport:
        """End the run's jobs, older ones first, wait until they are gone, and return the report. Raise Unreachable if
        the scheduler does not answer, a job does not end within a minute, or the newest job may be another run's.
        """
        job, submit_token = self._job()
        others = self._others(job)
        for one in others:  # of older attempts: left over, or requeued late
            self._queue.cancel(one.id)
        report = self._end_newest(job, submit_token)
        for one in others:
            self._wait_until_gone(one.id)
        ended = (*report.ended, *map(_named, others))
        return CancelReport(ended, already=report.already and not others, cut_off=report.cut_off)

    def _end_newest(self, job: QueuedJob | None, submit_token: str) -> CancelReport:
        """Ask the processes of the newest attempt's job to save and end, end the job, and return the report.

        If `job` is None, because the attempt has none, or has ended, only record that the attempt is cancelled. A job
        that does not show `submit_token`, the attempt's, is never ended: raise Unreachable, unless the attempt ends by
        itself. Also raise it if the attempt was submitted to another cluster.
        """
        if (job is None or submit_token not in job.submit_tokens) and (
            why := ThisCluster(self._queue).elsewhere(self._run, self._attempt)
        ):
            raise Unreachable(why)
        if job is None or job.phase is Phase.ENDED:
            already = has_ended(self._run, self._attempt)  # by itself, meanwhile
            write_cancelled(self._run, self._attempt, self._plan)
            return CancelReport((), already=already)
        ours = submit_token in job.submit_tokens
        if job.phase is Phase.RUNNING and not job.suspended:  # the processes of a suspended job cannot answer
            if ours:
                self._queue.warn(job.id)
            self._wait_for_the_end(grace_s_of(self._plan) + CANCEL_SURE_S)
        if not ours:
            self._refuse_other_job(job)
        elif not self._is_gone(job.id):
            self._queue.cancel(job.id)
            self._wait_until_gone(job.id)
        write_cancelled(self._run, self._attempt, self._plan)
        return CancelReport((_named(job),), already=False, cut_off=self._unreachable_hosts())

    def _unreachable_hosts(self) -> tuple[str, ...]:
        """Return a line about each of the attempt's hosts that the scheduler reports as down, as processes may still
        run there; an empty tuple if the scheduler does not answer.
        """
        plan = readable(self._attempt.plan, Plan)
        hosts = [node.host for node in plan.nodes if node.host] if plan is not None else []
        try:
            known = self._queue.nodes(hosts) if hosts else {}
        except Unreachable:
            return ()
        lease_s = (plan.spec.recovery if plan is not None else Recovery()).lease_s
        end = f"what still runs there ends when it reads the run's folder, or its lease of {lease_s:g} s is over"
        return tuple(f"{host} does not answer {self._queue.called}: {end}" for host, node in known.items() if node.down)

    def _others(self, job: QueuedJob | None) -> list[QueuedJob]:
        """Return the run's jobs that have not ended, known by its submit tokens, other than `job`, the one of its
        newest attempt (None: it has none).
        """
        found = [one for one in self._queue.jobs() if not _job_has_ended(one) and submit_token_on(one, self._run)]
        return [one for one in found if job is None or one.id != job.id]

    @contextlib.contextmanager
    def _no_submit_under_way(self) -> Iterator[None]:
        """Hold the attempt's submit lock during the body if its job is unknown, so that no process submits it. Wait for
        a process that is submitting it now; raise Unreachable if that takes longer than a submit may.
        """
        intent = readable(self._attempt.intent, Intent)
        lock = BatchDir(Path(intent.batch)).lock if intent is not None and intent.batch else self._attempt.job_lock
        if intent is None or readable(self._attempt.handle, Handle) is not None or not lock.parent.is_dir():
            yield
            return
        deadline = time.monotonic() + 1.5 * SUBMIT_S  # longer than a submitter waits for its client
        while True:
            with locked(lock, optional=True) as held:
                if held is not None:
                    yield
                    return
            if time.monotonic() >= deadline:
                raise Unreachable(f"it is being handed to {self._queue.called}, which takes long")
            time.sleep(_STEP_S)

    def _job(self) -> tuple[QueuedJob | None, str]:
        """Return (the attempt's job or None, its submit token or "" if it is unknown). By the token a job is found even
        if its submitter was killed before it recorded the id.

        Raise Unreachable if the scheduler does not answer, or if several jobs may be the attempt's.
        """
        jobs = self._queue.jobs()
        handle = readable(self._attempt.handle, Handle)
        if handle is not None:
            noted = (job for job in jobs if job.id == handle.job_id and job.may_have(handle.submit_token))
            return next(noted, None), handle.submit_token
        for submit_token, index in submit_tokens_of(self._run):
            ours = [
                job for job in jobs if submit_token in job.submit_tokens and (job.element or ("", None))[1] == index
            ]
            if ours:
                return min(ours, key=_job_has_ended), submit_token
        intent = readable(self._attempt.intent, Intent)
        job, submit_token = (None, "") if intent is not None else self._job_by_name()
        if job is None:
            self._refuse_to_guess(jobs, intent)
        return job, submit_token

    def _job_by_name(self) -> tuple[QueuedJob | None, str]:
        """Return (the job with the run's name, a submit token that it shows), for a run whose records hold no token, or
        (None, "") if there is no such job. A job that has ended is only returned if there is no live one. Jobs that
        show no token and elements of arrays are not considered.

        Raise Unreachable if several live jobs have the name.
        """
        jobs = self._queue.jobs(called=self._run.path.name)
        named = sorted((job for job in jobs if job.submit_tokens and job.element is None), key=_job_has_ended)
        live = [job for job in named if not _job_has_ended(job)]
        if len(live) > 1:
            text = f"{len(live)} jobs are called {self._run.path.name}, and no record shows which is this run's"
            hands = [self._queue.by_hand(job.id) for job in live]
            raise Unreachable(text, *(f"hint: if `{see}` shows that it is this run's: {end}" for see, end in hands))
        return next(((job, submit_token) for job in named for submit_token in job.submit_tokens), (None, ""))

    def _refuse_to_guess(self, jobs: Sequence[QueuedJob], intent: Intent | None) -> None:
        """Raise Unreachable if one of `jobs`, elements of an array, may be this run's and no record says to which run
        it belongs.

        `intent` is the record with the attempt's submit token, None if it cannot be read.
        """
        known = _arrays_known(self._run)
        doubtful = [
            job
            for job in jobs
            if job.element is not None and not _job_has_ended(job) and job.submit_tokens - known
            if intent is None or intent.submit_token in job.submit_tokens
        ]
        if doubtful:
            ids = ", ".join(job.id for job in doubtful[:_SHOWN]) + (", ..." if len(doubtful) > _SHOWN else "")
            see, end = self._queue.by_hand(doubtful[0].id)
            text = (
                f"no record shows which job is {self._run.path.name}'s, and it may be one of these of an array: {ids}"
            )
            raise Unreachable(text, f"hint: if `{see}` shows that it is this run's: {end}")

    def _refuse_other_job(self, job: QueuedJob) -> None:
        """Raise Unreachable because this job does not show the run's submit token, unless the run has ended
        meanwhile.
        """
        if not self._has_ended():
            see, end = self._queue.by_hand(job.id)
            text = f"job {job.id} does not have this run's submit token on it: it may be another user's by now"
            raise Unreachable(text, f"hint: if `{see}` shows that it is this run's: {end}")

    def _wait_for_the_end(self, timeout_s: float) -> None:
        """Wait until this attempt has ended, or return after `timeout_s` even if it has not.

        If the run opens a later attempt meanwhile, that one is asked to stop as well, and its end is awaited instead,
        within the same time.
        """
        deadline = time.monotonic() + timeout_s
        while not self._has_ended() and time.monotonic() < deadline:
            time.sleep(_STEP_S)
            latest = newest(self._run)
            if latest is not None and latest.number > self._attempt.number:  # it was moving on just then
                self._attempt = latest
                ask_to_stop(self._attempt, "cancel")

    def _wait_until_gone(self, job: str) -> None:
        """Wait until the job has ended; raise Unreachable if it has not within a minute."""
        deadline = time.monotonic() + _GONE_S
        while not self._is_gone(job):
            if time.monotonic() >= deadline:
                hint = f"hint: {self._queue.by_hand(job)[0]}"
                raise Unreachable(f"job {job} is still ending after {_GONE_S:g} s", *self._unreachable_hosts(), hint)
            time.sleep(_LOOK_S)

    def _is_gone(self, job: str) -> bool:
        """Return whether the scheduler shows the job as ended or not at all."""
        return all(one.phase is Phase.ENDED for one in self._queue.jobs([job]))

    def _has_ended(self) -> bool:
        """Return whether the attempt's end record exists; `state.json` is written later and does not count."""
        end = readable(self._attempt.end, AttemptEnd)
        return end is not None and end.state.ended


def _job_has_ended(job: QueuedJob) -> bool:
    """Return whether the scheduler shows the job as ended."""
    return job.phase is Phase.ENDED


def _arrays_known(run: RunDir) -> set[str]:
    """Return the submit tokens of the jobs that contain several runs each (job arrays) and have a readable record, in
    the folder that holds `run` or in another of this user's folders of runs.
    """
    roots = {run.path.parent, *(path.parent for _, path in registered())}
    folders = [folder for root in roots for folder in root.glob(f"{BATCH_PREFIX}*")]
    return {one.name.removeprefix(BATCH_PREFIX) for one in folders if readable(BatchDir(one).runs, list[str])}


def _named(job: QueuedJob) -> str:
    """Return the job as text for a message, with its id, state and hosts."""
    return f"job {job.id} ({job.word.lower()}{f' on {job.hosts}' if job.hosts else ''})"
