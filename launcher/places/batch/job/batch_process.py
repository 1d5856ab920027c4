"""The batch process: the only command of a batch script. It supervises, one after the other, the attempts of a run that
fit into this job.

    python -m launcher.supervisor launcher.places.batch.job.batch_process:BatchSupervisor RUN_DIR KIND [SIGNAL]

In an array, RUN_DIR is the folder with the list of runs. SIGNAL is the signal that killed the previous batch process in
the same start of the job.

A start of the job claims the attempt for which the job was submitted; a start after a requeue opens the next attempt
and raises the fence. When an attempt ends and another one is to follow, it runs in this allocation if possible, else in
the same job after a requeue, else in a new job. A run that has ended is never requeued.

A scheduler does not inform a job about nodes that an administrator drains, as `launch nodes drain` does. If the run has
a spare node, the batch process therefore asks twice a minute about all nodes at once.
"""

import math
import os
import signal
import threading
import time
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import BinaryIO

import msgspec

from launcher.copies.memory_tier import close_tier
from launcher.errors import Exit, Unreachable
from launcher.places.batch.batch import LIMIT_S, BatchSystem, Fate, JobStart
from launcher.places.batch.cluster import queue_of
from launcher.places.batch.hand_over import run_of_element
from launcher.places.batch.job.claims import claim
from launcher.places.batch.job.guard import HEARD
from launcher.places.batch.job.next_job import NextJob
from launcher.places.batch.job.nodes import ASK_S, with_allocated_hosts
from launcher.places.other_runs import OtherRuns
from launcher.plan.model import Plan
from launcher.plan.queueing import begun
from launcher.run.attempts import newest, read_intent, read_plan
from launcher.run.draining import ask_to_drain
from launcher.run.durable import readable, write_record
from launcher.run.layout import AttemptDir, RunDir
from launcher.run.processes import die_with, end_all, tagged_of_run
from launcher.run.records import AttemptEnd, Handle, StopRequest
from launcher.supervisor.agent_processes import AgentPlace
from launcher.supervisor.allocation import Allocation
from launcher.supervisor.attempt_end import ask_to_stop, cancelled, is_cancelled, write_end
from launcher.supervisor.strategy import Strategy
from launcher.supervisor.waiting import Turn, Waiter
from launcher.supervisor.wakeup import Wakeup

# What a scheduler sets for the batch process alone, and would take to the other hosts: they are not this one.
_OF_THIS_HOST = ("HOSTNAME", "ENVIRONMENT")
_LOOK_S = 5.0
_TOLD_WITHIN_S = 30.0  # time for notifications before the job of an ended run exits
_DRAINS_LOOK_S = 30.0
_MOST = 200  # characters of what an administrator gives as the reason
_END_REQUESTS_LOOK_S = 2.0
_EARLIEST_S = 120.0


class JobEndRequests:
    """The requests to end an attempt in a batch job.

    SIGTERM means that the nodes are taken now, a warning signal of the queue that they soon will be, and `stop.json`
    that a user cancels. The file is read every two seconds, in case the scheduler cannot deliver a signal.
    """

    def __init__(self, queue: BatchSystem, wakeup: Wakeup, attempt: AttemptDir, plan: Plan, job: str) -> None:
        self._queue, self._wakeup, self._attempt, self._job = queue, wakeup, attempt, job
        self._before_s = queue.warn_before_s(plan)
        self._look_at = time.monotonic() + _END_REQUESTS_LOOK_S
        self._limit_at = math.inf
        self._kind = "limit"

    def next_check(self) -> float | None:
        """Return the time, by `time.monotonic`, at which `to_end` has to be called again: that of the next look for
        `stop.json`, or that at which ranks should begin to save before the time limit, if it is earlier.

        It is never None, because `stop.json` is looked for as long as the attempt runs.
        """
        return min(self._look_at, self._limit_at)

    def to_end(self) -> bool:
        """Return whether the attempt is to end, after writing the stop request into its folder unless a user did.

        It is to end if SIGTERM has come, if a user has asked for it, or if a warning has come and ranks have to begin
        to save in order to be done before the time limit.
        """
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
            self._look_at = now + _END_REQUESTS_LOOK_S
            return readable(self._attempt.stop, StopRequest) is not None
        return False

    def _time_left_s(self) -> float:
        """Return the seconds from a warning signal until ranks should begin to save their state, so that they are done
        before the job's time limit.

        Return 0, which means at once, if the scheduler does not answer, or if that moment is more than two minutes away
        or the job has no time limit: then the signal announces a preemption.
        """
        try:
            jobs = self._queue.jobs([self._job], limit_s=ASK_S)
        except Unreachable:
            return 0.0
        ends_at = next((job.ends_at for job in jobs if job.ends_at is not None), None)
        left_s = math.inf if ends_at is None else ends_at - time.time() - self._before_s
        if left_s > _EARLIEST_S:  # it was no clock that sent the signal
            self._kind = "preempt"
            return 0.0
        return max(0.0, left_s)


@contextmanager
def watched_for_drains(
    queue: BatchSystem, attempt: AttemptDir, plan: Plan, look_s: float = _DRAINS_LOOK_S
) -> Iterator[None]:
    """Ask the scheduler every `look_s` seconds during the body, in a thread, which nodes an administrator drains, and
    move ranks off these.
    """
    if len(plan.nodes) <= plan.nodes_max:
        yield
        return
    over = threading.Event()
    watch = threading.Thread(target=_watch, args=(queue, attempt, plan, look_s, over), daemon=True)
    watch.start()
    try:
        yield
    finally:
        over.set()
        watch.join(LIMIT_S)


def _watch(queue: BatchSystem, attempt: AttemptDir, plan: Plan, look_s: float, over: threading.Event) -> None:
    """Ask the scheduler every `look_s` seconds for nodes that it drains, and have ranks moved off them, until `over` is
    set.
    """
    told = set[int]()
    while not over.wait(look_s):
        told |= move_off_drained_nodes(queue, attempt, plan, told)


def move_off_drained_nodes(queue: BatchSystem, attempt: AttemptDir, plan: Plan, told: Collection[int] = ()) -> set[int]:
    """Ask the coordinator to move ranks off the nodes that the scheduler drains, except those in `told` (node indices);
    return the indices of the nodes that it was asked about now.

    A node that is taken back into use gets no ranks until the next attempt. If the scheduler does not answer, the
    result is empty.
    """
    hosts = {node.host: node.index for node in plan.nodes}
    try:
        words = queue.nodes([*hosts])
    except Unreachable:
        return set()
    found = {hosts[host]: f"the scheduler says {word.text}"[:_MOST] for host, word in words.items() if word.drains}
    new = {index: why for index, why in found.items() if index not in told}
    if new:
        ask_to_drain(attempt, new)
    return set(new)


class BatchSupervisor(Strategy):
    """The supervisor of a run inside its batch job. Its command-line arguments are KIND, the kind of batch system, and,
    if a signal killed an earlier batch process of this start of the job, the number of that signal.
    """

    stands_by = False  # it begins at once, without a message from its starter
    _place: AgentPlace | None = None  # a prepared process that is to become the next attempt's agent on this node

    def supervise(self, go: BinaryIO) -> int:
        """Run the attempts of this job's run, and return the exit code that the scheduler records.

        It starts at once: `go`, a pipe on which other kinds of supervisors wait for a message, is closed unread.
        """
        go.close()
        die_with(os.getppid())  # else Slurm's end of a job whose parent died would look like a user's
        for name in _OF_THIS_HOST:
            os.environ.pop(name, None)
        queue = queue_of(self.words[0])
        wakeup = Wakeup(queue.warnings)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, HEARD)
        start = queue.this_start()
        run = run_of_element(self.run.path, start.element)
        if run is None:
            return Exit.OK
        self.run = run
        return self.run_attempts(queue, start, wakeup, int(self.words[1]) if len(self.words) > 1 else None)

    def run_attempts(self, queue: BatchSystem, start: JobStart, wakeup: Wakeup, killed_by: int | None) -> int:
        """Run one attempt after the other for as long as this allocation lasts. Return the exit code with which to
        leave the job: that of the run's end, or the one by which the scheduler requeues the job.

        `wakeup` receives the signals by which the scheduler asks the job to end. `killed_by` is the signal that killed
        the previous batch process of the same start, or None if there was none.
        """
        if killed_by is not None:
            end_all(lambda: tagged_of_run(self.run.path, os.getuid()))
        if (put_back := _wait_for_others(queue, self.run, start.job, wakeup)) is not None:
            return put_back
        attempt = claim(queue, self.run, start.job, killed_by)
        self._queue, self._job, self._wakeup, self._hosts = queue, start.job, wakeup, queue.hosts()
        return self.carry(attempt)

    def carry_out(self, attempt: AttemptDir) -> AttemptEnd:
        """Run the attempt's agents on the nodes of this job until its end is written, and return that end."""
        run, queue, wakeup = self.run, self._queue, self._wakeup
        self._plan = plan = with_allocated_hosts(read_plan(run, attempt.number), self._hosts)
        write_record(attempt.plan, plan)
        end_requests = JobEndRequests(queue, wakeup, attempt, plan, self._job)
        agents = queue.processes(plan, attempt)
        agents[0].place, self._place = self._place, None
        with watched_for_drains(queue, attempt, plan):
            end = Allocation(
                run, attempt, plan, wakeup, end_requests, agents,
                agents_of=partial(queue.role_processes, plan), told_within_s=_TOLD_WITHIN_S,
            ).carry_out()  # fmt: skip
        self._place = agents[0].place
        return end

    def follow(self, attempt: AttemptDir, end: AttemptEnd) -> AttemptDir | None:
        """Return the next attempt if it can run in this allocation, as no node is lost or unfit, and the job is not
        about to lose its nodes. Otherwise return None: the run has ended, or it continues once the scheduler has
        started this job again, or in another job, which is submitted here.
        """
        close_tier(self.run.path, attempt.number)
        next_job = NextJob(self._queue, self.run, self._plan, self._job, self._wakeup)
        following, self.leaves_with = next_job.follow(attempt, end)
        return following


def _wait_for_others(queue: BatchSystem, run: RunDir, job: str, wakeup: Wakeup) -> int | None:
    """Wait for the runs that this run has to follow, if its first start has not begun. Return None once each has
    succeeded, ended or reached the step for which this run waits, or if this run has ended meanwhile.

    If the job is about to lose its nodes, or the scheduler can hold it in the queue until those runs' jobs have ended,
    requeue it and return the exit code with which to leave it. A scheduler knows how jobs ended, but a run may have
    continued in another job, so the runs themselves are checked here.
    """
    attempt = newest(run)
    if attempt is None or attempt.started.exists() or attempt.end.exists():
        return None
    plan = read_plan(run, attempt.number)
    if not plan.awaited or read_intent(attempt).reason == "requeue":
        return None
    awaited = msgspec.structs.replace(begun(plan), awaited=plan.awaited)
    follows = False

    def leaves() -> bool:
        """Return whether to stop waiting on these nodes, as the job can wait in the queue, loses its nodes or
        is cancelled.
        """
        nonlocal follows
        follows = queue.leaves_with is not None and queue.follow(job, _jobs_of(plan))
        return follows or wakeup.warned or is_cancelled(attempt)

    turn = Waiter(run, attempt, awaited, OtherRuns().look).wait(wakeup, every_s=_LOOK_S, leaves=leaves)
    if turn is not Turn.STOPPED or is_cancelled(attempt):
        return None
    return queue.leaves_with if follows else _put_back(queue, run, attempt, plan, job)


def _put_back(queue: BatchSystem, run: RunDir, attempt: AttemptDir, plan: Plan, job: str) -> int:
    """Requeue the job `job`, whose run still waits for other runs when the scheduler warns that it takes the nodes
    away. If the scheduler shows that the job was cancelled, write the attempt's end instead.

    Return the exit code with which this process leaves the job.
    """
    if queue.fate(job) is Fate.CANCELLED:
        write_end(run, attempt, cancelled(f"its {queue.called} job was cancelled"), plan)
        return Exit.OK
    queue.requeue(job)
    return Exit.OK if queue.leaves_with is None else queue.leaves_with


def _jobs_of(plan: Plan) -> list[str]:
    """Return the id of the newest job of each run for which the plan's run waits before it starts; a run that has no
    job is left out.
    """
    newest_ones = (newest(RunDir(Path(one.run_dir))) for one in plan.awaited)
    handles = (readable(one.handle, Handle) for one in newest_ones if one is not None)
    return [handle.job_id for handle in handles if handle is not None and handle.job_id is not None]
