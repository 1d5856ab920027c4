"""Choose how a run continues after an attempt in a batch job: by another attempt in this job, by the same job requeued,
or by a new job.
"""

import contextlib
import sys
import time
from collections.abc import Sequence

import msgspec

from launcher.errors import Exit, NotStarted, Refused, Unreachable
from launcher.places.batch.batch import BatchSystem, Fate
from launcher.places.batch.hand_over import hand_over
from launcher.places.batch.job.claims import cancel, next_attempt, owner_of
from launcher.places.batch.job.nodes import ASK_S, is_back, lost_nodes, unfit_nodes
from launcher.plan.model import Plan
from launcher.run.attempts import new_attempt, newest
from launcher.run.avoided import avoid, avoided
from launcher.run.durable import append_line, read_lines, read_record, readable
from launcher.run.layout import AttemptDir, RunDir
from launcher.run.records import EXPLAINED, AttemptEnd, Event, Exclusion, Failure, Handle, RunState
from launcher.states import Cause, State, exit_of
from launcher.supervisor.attempt_end import cancelled, is_cancelled, write_end
from launcher.supervisor.handover import Handover
from launcher.supervisor.wakeup import Wakeup

_TAKEN = (Cause.PREEMPTED, Cause.TIME_LIMIT)  # the allocation will be gone, so the run has to move
_TAKEN_AS = {
    Fate.PREEMPTED: Cause.PREEMPTED,
    Fate.QUEUED_AGAIN: Cause.PREEMPTED,
    Fate.TIMED_OUT: Cause.TIME_LIMIT,
}
_AGAIN_S = 10.0
_LAST_S = 120.0  # how long a requeued job waits for the scheduler to end it


class NextJob:
    """The choice of what follows an attempt in a batch job; the job's batch process makes it and carries it out."""

    def __init__(self, queue: BatchSystem, run: RunDir, plan: Plan, job: str, wakeup: Wakeup) -> None:
        self._queue, self._run, self._plan, self._job, self._wakeup = queue, run, plan, job, wakeup

    def follow(self, attempt: AttemptDir, end: AttemptEnd) -> tuple[AttemptDir | None, int]:
        """Return (the next attempt, which this process runs, or None; the exit code with which this process leaves if
        there is none).

        If there is none, the run was cancelled, or the same job requeued, or a new job submitted, or the run ended
        because the scheduler refused both. The exit code is 0, or that by which the batch system requeues the job.
        """
        history = read_lines(self._run.events, Event)
        lost = self._gone(attempt, lost_nodes(history, attempt.number, self._plan, time.time()))
        unfit = unfit_nodes(history, attempt.number, self._plan, time.time())
        stays = not lost and not unfit and end.cause not in _TAKEN
        if stays and not self._wakeup.stop_asked:
            self._wakeup.wait(end.delay_s)
        if is_cancelled(attempt):
            cancel(self._run, attempt)
            return None, Exit.OK
        if stays and not self._wakeup.stop_asked:
            return next_attempt(self._queue, self._run, attempt, end.cause, self._job), Exit.OK
        return None, self._leave() if self._move(attempt, end, lost, unfit) else Exit.OK

    def _leave(self) -> int:
        """Return the exit code with which this process leaves after a requeue: the one by which the batch system
        requeues, or else 0, after a wait for the scheduler to end the job.
        """
        if self._queue.leaves_with is not None:
            return self._queue.leaves_with
        self._wakeup.wait(_LAST_S)
        return Exit.OK

    def _move(
        self, attempt: AttemptDir, end: AttemptEnd, lost: Sequence[Exclusion], unfit: Sequence[Exclusion]
    ) -> bool:
        """Have the scheduler start the run again, by this job requeued or by a new job. Do nothing if a later attempt
        exists, and end the run if its job was cancelled. Return True if this same job starts again; else its nodes are
        not needed any more.

        Later attempts avoid the nodes in `unfit`, which have a faulty device. They avoid those in `lost`, which fell
        silent, only if the scheduler still shows this job as running: if it ended the job's tasks, that explains the
        silence, and if it does not answer, this node may be the one that is cut off.
        """
        fate = self._fate()
        if lost and fate is Fate.RUNS:
            fate = self._fate_once_put_back(attempt, fate)
        latest = newest(self._run)
        if latest is not None and latest.number > attempt.number:
            return False  # another start of the job, or another job, has gone on meanwhile
        if unfit:
            avoid(self._run, unfit)
        if lost and fate is Fate.RUNS:
            avoid(self._run, self._gone(attempt, lost))  # the answer took time: a node that was cut off may be back
        end = self._explained(attempt, end, fate, lost)
        match fate:
            case Fate.CANCELLED:
                write_end(self._run, attempt, cancelled(f"its {self._queue.called} job was cancelled"), self._plan)
                return False
            case Fate.QUEUED_AGAIN:
                start_requeued_job(self._queue, self._run, self._plan, self._job, end.delay_s)
                return True
            case Fate.PREEMPTED | Fate.TIMED_OUT | Fate.RUNS | Fate.UNKNOWN:
                return self._again_or_anew(attempt, end, lost=bool(lost or unfit))

    def _fate_once_put_back(self, attempt: AttemptDir, fate: Fate) -> Fate:
        """Wait, after the loss of a node, for the scheduler to requeue or end the job by itself, and return what it
        last said about the job. The wait is worth it because a requeued job is first in the queue, a new one last.

        It ends after the time within which the batch system requeues such jobs, and soon after a request to stop or
        cancel the run; the result is then RUNS or UNKNOWN as before. `fate` is the scheduler's present answer, which
        is returned at once if it is another than these two, or if the system never requeues this job by itself.
        """
        within_s = self._queue.puts_back_within_s(self._plan, self._job)
        if within_s is None:
            return fate
        text = f"{self._queue.called} is to put job {self._job} back first in its queue, within {within_s:.0f} s"
        append_line(self._run.events, Event(time.time(), attempt.number, "job", f"a node of the job is lost: {text}"))
        deadline = time.monotonic() + within_s
        while fate in (Fate.RUNS, Fate.UNKNOWN) and time.monotonic() < deadline and not is_cancelled(attempt):
            stopped = self._wakeup.stop_asked
            self._wakeup.wait(ASK_S)
            fate = self._fate()
            if stopped:
                break
        return fate

    def _explained(self, attempt: AttemptDir, end: AttemptEnd, fate: Fate, lost: Sequence[Exclusion]) -> AttemptEnd:
        """Return `end`, corrected if the attempt ended because nodes (`lost`) fell silent, but `fate` says that the
        scheduler ended their processes, and it reports none of them as down. The cause is then what `fate` stands for,
        such as a preemption, instead of a lost node; the corrected end is also written.
        """
        cause = _TAKEN_AS.get(fate)
        if end.cause is not Cause.NODE_LOST or cause is None or self._any_is_down(lost):
            return end
        text = f"{self._queue.called} ended what ran on {', '.join(one.host for one in lost) or 'its nodes'}"
        told = msgspec.structs.replace(end, cause=cause, exit_code=exit_of(cause), message=text)
        append_line(self._run.events, Event(time.time(), attempt.number, EXPLAINED, text, cause=cause))
        last = readable(self._run.state, RunState)
        generation = last.generation if last is not None and last.attempt == attempt.number else 0
        failure = Failure(cause, text, attempt.number, generation, at=end.ended_at)
        write_end(self._run, attempt, told, self._plan, failure)
        return told

    def _any_is_down(self, lost: Sequence[Exclusion]) -> bool:
        """Return whether the scheduler reports a host in `lost` as down; return False if it does not answer."""
        hosts = [one.host for one in lost]
        with contextlib.suppress(Unreachable):
            return bool(hosts) and any(node.down for node in self._queue.nodes(hosts, limit_s=ASK_S).values())
        return False

    def _gone(self, attempt: AttemptDir, lost: Sequence[Exclusion]) -> list[Exclusion]:
        """Return the lost nodes without those that are back: on these a new agent runs, and the machine answers."""
        return [one for one in lost if not is_back(self._plan, attempt, one)]

    def _fate(self) -> Fate:
        """Return what the scheduler does with the job at this moment (requeue, preempt or end it, or let it run), or
        UNKNOWN if it does not answer.
        """
        try:
            return self._queue.fate(self._job)
        except Unreachable as error:
            print(error, file=sys.stderr)
            return Fate.UNKNOWN

    def _again_or_anew(self, attempt: AttemptDir, end: AttemptEnd, *, lost: bool) -> bool:
        """Requeue this job, or if that is refused submit a new one, or if that is refused too end the run; return True
        if this job starts again.

        With `lost`, after the loss of a node, a new job comes first: a requeued one starts only once the scheduler has
        given the node up, which may take minutes, and Slurm 22.05 then gives a job with GPUs no steps any more.
        """
        none_anew = self._new_job(attempt, end, "a node of the job is lost") if lost else ""
        if lost and not none_anew:
            return False
        not_again = self._requeue()
        if not not_again:
            start_requeued_job(self._queue, self._run, self._plan, self._job, end.delay_s)
            return True
        none_anew = none_anew or self._new_job(attempt, end, f"job {self._job} was not requeued: {not_again}")
        if none_anew:
            self._give_up(attempt, end, not_again, none_anew)
        return False

    def _give_up(self, attempt: AttemptDir, end: AttemptEnd, not_again: str, none_anew: str) -> None:
        """Write the end of a run that cannot continue: `not_again` is why this job cannot be requeued, `none_anew` why
        no new job can be submitted.
        """
        text = (
            f"{self._queue.called} neither requeues job {self._job} ({not_again}) nor takes a new one ({none_anew}); "
            "`launch resume` continues the run"
        )
        failed = AttemptEnd(State.FAILED, end.cause, end.exit_code, time.time(), text)
        write_end(self._run, newest(self._run) or attempt, failed, self._plan)

    def _requeue(self) -> str:
        """Requeue the job; return why that failed, or "".

        If the controller does not answer, see whether it has requeued the job all the same before asking again, because
        it would refuse a second request.
        """
        while True:
            try:
                return self._queue.requeue(self._job)
            except Unreachable as error:
                print(error, file=sys.stderr)
                silence = str(error)
            stopped = self._wakeup.stop_asked
            self._wakeup.wait(_AGAIN_S)
            if self._fate() is Fate.QUEUED_AGAIN:
                return ""
            if stopped:
                return silence

    def _new_job(self, before: AttemptDir, end: AttemptEnd, why: str) -> str:
        """Open the attempt after `before` and submit a job for it; return why that failed, or "" if it succeeded, its
        result is unknown, or another process has opened an attempt.

        `end` is the end of the attempt `before`; `why`, the reason for a new job, goes into the run's history. If the
        job is refused, the opened attempt is assigned to this job, which may yet be requeued: status asks for the job
        of the newest attempt.
        """
        run, queue = self._run, self._queue
        if not _may_submit(queue):
            return "this host may not submit"
        try:
            after, _ = new_attempt(run, self._plan.cluster, "requeue", end.cause, kind=queue.kind, after=before.number)
        except Refused as later:
            print(later, file=sys.stderr)
            return ""
        try:
            hand_over(queue, Handover.of(run, after))
        except NotStarted as refusal:
            if owner_of(queue, run, after, self._job) == self._job:  # and no other machine has handed it over meanwhile
                message = f"no new job: {refusal}"
                waits = AttemptEnd(State.QUEUED, end.cause, end.exit_code, time.time(), message)
                write_end(run, after, waits, self._plan)
                return str(refusal)
        except Unreachable as error:
            print(f"{error}; `launch status` finds out whether the job exists", file=sys.stderr)
            return ""
        handle = read_record(after.handle, Handle)
        text = f"{why}: the run continues in job {handle.job_id if handle else '?'}"
        append_line(run.events, Event(time.time(), after.number, "job", text))
        return ""


def _may_submit(queue: BatchSystem) -> bool:
    """Return whether the scheduler lets this host submit jobs. Return True if the scheduler does not answer now, as it
    may accept a job later.
    """
    try:
        return queue.may_submit()
    except Unreachable:
        return True


def start_requeued_job(queue: BatchSystem, run: RunDir, plan: Plan, job: str, delay_s: float) -> None:
    """Have the job `job`, which is just being requeued, start after `delay_s` seconds, and on nodes that the run does
    not exclude, unless it would then have too few.
    """
    queue.start_again(plan, job, [exclusion.host for exclusion in avoided(run)], delay_s)
