"""Ending a run on Slurm: first its own people are asked, by its folder and by a signal; then Slurm ends the job."""

import time

from launcher.clusters.last_word import ask_to_stop, cancelled, write_end
from launcher.clusters.protocol import CancelReport
from launcher.clusters.slurm.queries.jobs import Job, cancel, read_jobs, squeue_jobs
from launcher.clusters.slurm.reach import ask
from launcher.clusters.slurm.states import Phase
from launcher.errors import Unreachable
from launcher.plan.model import Plan
from launcher.rundir.attempts import newest, read_intent
from launcher.rundir.durable import read_record
from launcher.rundir.layout import AttemptDir, RunDir
from launcher.rundir.records import AttemptEnd, Handle

_ASK_S = 10.0
_SURE_S = 10.0
_GONE_S = 60.0
_STEP_S = 0.1
_LOOK_S = 1.0


class Cancelling:
    """One cancel of one attempt."""

    def __init__(self, run: RunDir, attempt: AttemptDir, plan: Plan) -> None:
        self._run, self._attempt, self._plan = run, attempt, plan

    def carry_out(self) -> CancelReport:
        """Returns when nothing of it is left. Raises Unreachable where Slurm cannot be asked: the wish stays."""
        ask_to_stop(self._attempt, "cancel")
        try:
            return self._with_slurm()
        except Unreachable as error:
            hint = "hint: if the run is on its nodes it reads the wish to end in its folder within seconds"
            raise Unreachable(*error.lines, hint) from error

    def _with_slurm(self) -> CancelReport:
        job = self._job()
        if job is None or job.state.phase is Phase.ENDED:
            already = self._has_ended()
            self._write_end()
            return CancelReport((), already=already)
        name = f"job {job.id} ({job.state.word.lower()}{f' on {job.hosts}' if job.hosts else ''})"
        if job.state.phase is Phase.RUNNING:
            ask(cancel(job.id, signal="TERM", batch=True), limit_s=_ASK_S)
            self._wait_for_the_end(self._plan.spec.recovery.grace_s + _SURE_S)
        if not self._is_gone(job.id):
            ask(cancel(job.id), limit_s=_ASK_S)
            self._wait_until_gone(job.id)
        self._write_end()
        return CancelReport((name,), already=False)

    def _job(self) -> Job | None:
        """The attempt's job; found by its ticket where its submitter was killed before it could note the id."""
        jobs = read_jobs(ask(squeue_jobs(), limit_s=_ASK_S).out)
        handle = read_record(self._attempt.handle, Handle)
        if handle is not None:
            return next((job for job in jobs if job.id == handle.job_id), None)
        comment = f"launch:{read_intent(self._attempt).ticket}"
        return next((job for job in jobs if comment in job.comment.split()), None)

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
                raise Unreachable(f"job {job} is still ending after {_GONE_S:g} s", f"hint: squeue -j {job}")
            time.sleep(_LOOK_S)

    def _is_gone(self, job: str) -> bool:
        jobs = read_jobs(ask(squeue_jobs(None, [job]), limit_s=_ASK_S).out)
        return all(one.state.phase is Phase.ENDED for one in jobs)

    def _has_ended(self) -> bool:
        end = read_record(self._attempt.end, AttemptEnd)
        return end is not None and end.state.ended

    def _write_end(self) -> None:
        if not self._has_ended():
            write_end(self._run, self._attempt, cancelled(), self._plan)
