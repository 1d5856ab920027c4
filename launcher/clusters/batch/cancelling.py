"""Ending a run in a queue: first its own people are asked, by its folder and by a signal; then the job is ended.

The scheduler is only told to end a job that has the run's ticket: an id alone may be a stranger's by now.
"""

import time

from launcher.clusters.batch.hand_over import BatchJob, ThisCluster, batch_job_of
from launcher.clusters.batch.queue import Phase, Queue, QueuedJob
from launcher.clusters.keeping.attempt_end import ask_to_stop, cancelled, write_end
from launcher.clusters.protocol import CancelReport
from launcher.errors import Unreachable
from launcher.plan.model import Plan
from launcher.rundir.attempts import newest
from launcher.rundir.durable import read_record
from launcher.rundir.layout import AttemptDir, RunDir
from launcher.rundir.records import AttemptEnd, Handle

_SURE_S = 10.0
_GONE_S = 60.0
_STEP_S = 0.1
_LOOK_S = 1.0


class Cancelling:
    """One cancel of one attempt."""

    def __init__(self, queue: Queue, run: RunDir, attempt: AttemptDir, plan: Plan) -> None:
        self._queue = queue
        self._run, self._attempt, self._plan = run, attempt, plan

    def carry_out(self) -> CancelReport:
        """Returns when nothing of it is left. Raises Unreachable where nobody can be asked: the wish stays."""
        if self._has_ended():
            return CancelReport((), already=True)
        ask_to_stop(self._attempt, "cancel")
        try:
            return self._with_the_scheduler()
        except Unreachable as error:
            hint = "hint: if the run is on its nodes it reads the wish to end in its folder within seconds"
            raise Unreachable(*error.lines, hint) from error

    def _with_the_scheduler(self) -> CancelReport:
        job, ticket = self._job()
        if (job is None or ticket not in job.tickets) and (
            why := ThisCluster(self._queue).elsewhere(self._run, self._attempt)
        ):
            raise Unreachable(why)
        if job is None or job.phase is Phase.ENDED:
            already = self._has_ended()  # by itself, meanwhile
            self._write_end()
            return CancelReport((), already=already)
        name = f"job {job.id} ({job.word.lower()}{f' on {job.hosts}' if job.hosts else ''})"
        ours = ticket in job.tickets
        if job.phase is Phase.RUNNING:
            if ours:
                self._queue.warn(job.id)
            self._wait_for_the_end(self._plan.spec.recovery.grace_s + _SURE_S)
        if not ours:
            self._leave_alone(job)
        elif not self._is_gone(job.id):
            self._queue.cancel(job.id)
            self._wait_until_gone(job.id)
        self._write_end()
        return CancelReport((name,), already=False)

    def _job(self) -> tuple[QueuedJob | None, str]:
        """The attempt's job, with its ticket; found by that where its submitter was killed before it noted the id."""
        jobs = self._queue.jobs()
        handle = read_record(self._attempt.handle, Handle)
        if handle is not None:
            named = (job for job in jobs if job.id == handle.job_id and job.may_have(handle.ticket))
            return next(named, None), handle.ticket
        whole = batch_job_of(self._run, self._attempt)
        index, ticket = _index_in(whole, self._run), whole.ticket.text
        ours = (job for job in jobs if ticket in job.tickets and (job.element or ("", None))[1] == index)
        return next(ours, None), ticket

    def _leave_alone(self, job: QueuedJob) -> None:
        """Raise, unless the run has ended by what its own people have read in its folder."""
        if not self._has_ended():
            see, end = self._queue.by_hand(job.id)
            text = f"job {job.id} does not have this run's ticket on it: it may be somebody else's by now"
            raise Unreachable(text, f"hint: if `{see}` shows that it is this run's: {end}")

    def _wait_for_the_end(self, timeout_s: float) -> None:
        deadline = time.monotonic() + timeout_s
        while not self._has_ended() and time.monotonic() < deadline:
            time.sleep(_STEP_S)
            latest = newest(self._run)
            if latest is not None and latest.number > self._attempt.number:  # it was moving on just then
                self._attempt = latest
                ask_to_stop(self._attempt, "cancel")

    def _wait_until_gone(self, job: str) -> None:
        deadline = time.monotonic() + _GONE_S
        while not self._is_gone(job):
            if time.monotonic() >= deadline:
                raise Unreachable(
                    f"job {job} is still ending after {_GONE_S:g} s", f"hint: {self._queue.by_hand(job)[0]}"
                )
            time.sleep(_LOOK_S)

    def _is_gone(self, job: str) -> bool:
        return all(one.phase is Phase.ENDED for one in self._queue.jobs([job]))

    def _has_ended(self) -> bool:
        end = read_record(self._attempt.end, AttemptEnd)
        return end is not None and end.state.ended

    def _write_end(self) -> None:
        if not self._has_ended():
            write_end(self._run, self._attempt, cancelled(), self._plan)


def _index_in(whole: BatchJob, run: RunDir) -> int | None:
    """Which element of an array is the run's; None where the run has a job of its own."""
    if whole.ticket.array is None:
        return None
    names = [member.path.name for member, _ in whole.members]
    return names.index(run.path.name) if run.path.name in names else -1
