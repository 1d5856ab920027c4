"""Who may want a Slurm attempt to end: Slurm before the limit, Slurm at once, or a person by the run's folder."""

import math
import signal
import time

from launcher.clusters.keeping.attempt_end import ask_to_stop
from launcher.clusters.keeping.wakeup import Wakeup
from launcher.clusters.slurm.queries.jobs import read_jobs, squeue_jobs
from launcher.clusters.slurm.reach import ask
from launcher.clusters.slurm.script import signal_before_s
from launcher.errors import Unreachable
from launcher.plan.model import Plan
from launcher.rundir.durable import read_record
from launcher.rundir.layout import AttemptDir
from launcher.rundir.records import StopRequest

WARNINGS = (signal.SIGUSR1, signal.SIGUSR2)
_LOOK_S = 2.0
_EARLIEST_S = 120.0
_ASK_S = 5.0


class SlurmWishes:
    """SIGTERM: the nodes are taken back. SIGUSR1, USR2: so they will be, soon. stop.json: a person cancels.

    The file is looked at every two seconds, for the day on which the controller cannot pass a signal on.
    """

    def __init__(self, bell: Wakeup, attempt: AttemptDir, plan: Plan, job: str) -> None:
        self._bell, self._attempt, self._job = bell, attempt, job
        self._before_s = signal_before_s(plan)
        self._look_at = time.monotonic() + _LOOK_S
        self._limit_at = math.inf
        self._kind = "limit"

    def next_look(self) -> float | None:
        return min(self._look_at, self._limit_at)

    def to_end(self) -> bool:
        now = time.monotonic()
        if self._bell.stop_asked:
            ask_to_stop(self._attempt, "preempt")
            return True
        if self._bell.warned:
            self._bell.warned = False
            self._limit_at = now + self._time_left_s()
        if now >= self._limit_at:
            ask_to_stop(self._attempt, self._kind)
            return True
        if now >= self._look_at:
            self._look_at = now + _LOOK_S
            return read_record(self._attempt.stop, StopRequest) is not None
        return False

    def _time_left_s(self) -> float:
        """Until the moment that the spec asks for: Slurm may warn a minute early. 0: now, when nobody can tell."""
        try:
            jobs = read_jobs(ask(squeue_jobs(None, [self._job]), limit_s=_ASK_S).out)
        except Unreachable:
            return 0.0
        ends_at = next((job.ends_at for job in jobs if job.ends_at is not None), None)
        left_s = math.inf if ends_at is None else ends_at - time.time() - self._before_s
        if left_s > _EARLIEST_S:  # it was no clock that sent the signal
            self._kind = "preempt"
            return 0.0
        return max(0.0, left_s)
