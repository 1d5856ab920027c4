"""Watch for requests to end a job's attempt: from the scheduler, at once or before the limit, or from the user."""

import math
import time

from launcher.errors import Unreachable
from launcher.places.batch.batch import BatchSystem
from launcher.plan.model import Plan
from launcher.run.durable import readable
from launcher.run.layout import AttemptDir
from launcher.run.records import StopRequest
from launcher.supervisor.attempt_end import ask_to_stop
from launcher.supervisor.wakeup import Wakeup

_LOOK_S = 2.0
_EARLIEST_S = 120.0
_ASK_S = 5.0


class JobEndRequests:
    """The requests to end an attempt in a batch job.

    SIGTERM means that the nodes are taken now, one of the queue's warning signals that they soon will be, and
    `stop.json` that a user cancels. The file is read every two seconds, in case the controller cannot deliver a signal.
    """

    def __init__(self, queue: BatchSystem, wakeup: Wakeup, attempt: AttemptDir, plan: Plan, job: str) -> None:
        self._queue, self._wakeup, self._attempt, self._job = queue, wakeup, attempt, job
        self._before_s = queue.warn_before_s(plan)
        self._look_at = time.monotonic() + _LOOK_S
        self._limit_at = math.inf
        self._kind = "limit"

    def next_check(self) -> float | None:
        """Return the moment at which to read the requests again."""
        return min(self._look_at, self._limit_at)

    def to_end(self) -> bool:
        """Return True once the attempt is to end, after writing the reason to its folder."""
        now = time.monotonic()
        if self._wakeup.stop_asked:
            ask_to_stop(self._attempt, "preempt")
            return True
        if self._wakeup.warned:
            self._wakeup.warned = False
            self._limit_at = now + self._time_left_s()
        if now >= self._limit_at:
            ask_to_stop(self._attempt, self._kind)
            return True
        if now >= self._look_at:
            self._look_at = now + _LOOK_S
            return readable(self._attempt.stop, StopRequest) is not None
        return False

    def _time_left_s(self) -> float:
        """Return the seconds until ranks should save; 0 means now, also if the scheduler does not answer.

        A warning may come up to a minute early.
        """
        try:
            jobs = self._queue.jobs([self._job], limit_s=_ASK_S)
        except Unreachable:
            return 0.0
        ends_at = next((job.ends_at for job in jobs if job.ends_at is not None), None)
        left_s = math.inf if ends_at is None else ends_at - time.time() - self._before_s
        if left_s > _EARLIEST_S:  # it was no clock that sent the signal
            self._kind = "preempt"
            return 0.0
        return max(0.0, left_s)
