"""What follows an attempt after which the run goes on: the next one here, the same job again, or a new job."""

import os
import subprocess
import sys
import time
from collections.abc import Sequence

from launcher.clusters.keeping.attempt_end import cancelled, is_cancelled, write_end
from launcher.clusters.keeping.wakeup import Wakeup
from launcher.clusters.slurm.claims import cancel, next_attempt, owner_of
from launcher.clusters.slurm.fate import Fate, fate
from launcher.clusters.slurm.node_health import lost_nodes
from launcher.clusters.slurm.parcels import hand_over, parcel_of
from launcher.clusters.slurm.queries.jobs import requeue
from launcher.clusters.slurm.reach import ask, clean_environment
from launcher.clusters.slurm.script import left_out
from launcher.errors import NotStarted, Unreachable
from launcher.plan.model import Plan
from launcher.rundir.attempts import new_attempt, newest
from launcher.rundir.avoided import avoid, avoided
from launcher.rundir.durable import append_line, read_record
from launcher.rundir.events import read_events
from launcher.rundir.layout import AttemptDir, RunDir
from launcher.rundir.records import AttemptEnd, Event, Handle
from launcher.words import Cause, State

_TAKEN = (Cause.PREEMPTED, Cause.TIME_LIMIT)  # the allocation will be gone, so the run has to move
_AGAIN_S = 10.0
_LAST_S = 120.0  # how long a requeued job waits for Slurm to end it


def follow(run: RunDir, attempt: AttemptDir, plan: Plan, end: AttemptEnd, job: str, bell: Wakeup) -> AttemptDir | None:
    """The attempt that this process goes on with; None where it has nothing more to do."""
    lost = lost_nodes(read_events(run), attempt.number, plan, time.time())
    if lost:
        avoid(run, lost)
    stays = not lost and end.cause not in _TAKEN
    if stays and not bell.stop_asked:
        bell.wait(end.delay_s)
    if is_cancelled(attempt):
        cancel(run, attempt)
        return None
    if stays and not bell.stop_asked:
        return next_attempt(run, attempt, end.cause, job)
    if _move(run, attempt, plan, end, job, bell, lost=bool(lost)):
        bell.wait(_LAST_S)
    return None


def _move(run: RunDir, attempt: AttemptDir, plan: Plan, end: AttemptEnd, job: str, bell: Wakeup, *, lost: bool) -> bool:
    """Have Slurm start the run again, elsewhere or later, unless it was ended by a person. True where it is this job
    that is to start again: Slurm ends it first. In any other case its nodes are of no more use to us."""
    match fate(job):
        case Fate.CANCELLED:
            write_end(run, attempt, cancelled("its Slurm job was cancelled"), plan)
            return False
        case Fate.QUEUED_AGAIN:
            _nudge(run, plan, job, end.delay_s)
            return True
        case Fate.PREEMPTED | Fate.TIMED_OUT | Fate.RUNS | Fate.UNKNOWN:
            return _again_or_anew(run, attempt, plan, end, job, bell, lost=lost)


def _again_or_anew(
    run: RunDir, attempt: AttemptDir, plan: Plan, end: AttemptEnd, job: str, bell: Wakeup, *, lost: bool
) -> bool:
    """This job again, or a new one, or else the end. True for the first.

    A requeued job starts only once Slurm has given its lost node up, which may take minutes; and Slurm 22.05 then
    grants a job with GPUs no step any more. A new job has neither trouble.
    """
    none_anew = _new_job(run, plan, end, job, "a node of the job is lost") if lost else ""
    if lost and not none_anew:
        return False
    not_again = _requeue(job, bell)
    if not not_again:
        _nudge(run, plan, job, end.delay_s)
        return True
    none_anew = none_anew or _new_job(run, plan, end, job, f"job {job} was not requeued: {not_again}")
    if none_anew:
        text = (
            f"Slurm neither requeues job {job} ({not_again}) nor takes a new one ({none_anew}); launch resume goes on"
        )
        failed = AttemptEnd(State.FAILED, end.cause, end.exit_code, time.time(), text)
        write_end(run, newest(run) or attempt, failed, plan)
    return False


def requeue_job(run: RunDir, plan: Plan, job: str) -> None:
    """The same, asked for by another process of the job, once the batch process is gone."""
    answer = ask(_deaf(requeue(job)))
    if answer.code == 0:
        _nudge(run, plan, job, 0.0)
    else:
        print(f"scontrol requeue: {answer.err.strip()}", file=sys.stderr)


def _requeue(job: str, bell: Wakeup) -> str:
    """Put the job back into the queue; gives why that is not to be."""
    while True:
        try:
            answer = ask(_deaf(requeue(job)))
        except Unreachable as error:
            print(error, file=sys.stderr)
            if bell.stop_asked:
                return str(error)
            bell.wait(_AGAIN_S)  # no refusal: a controller that wakes up may even carry it out
            continue
        return "" if answer.code == 0 else answer.err.strip() or f"scontrol requeue left with {answer.code}"


def _nudge(run: RunDir, plan: Plan, job: str, delay_s: float) -> None:
    argv = [sys.executable, "-P", "-m", "launcher.clusters.slurm.nudge", job, str(delay_s)]
    argv += left_out(plan, [blame.host for blame in avoided(run)])
    nowhere, environ = subprocess.DEVNULL, clean_environment(os.environ)
    subprocess.Popen(_deaf(argv), env=environ, stdin=nowhere, stdout=nowhere, stderr=nowhere, start_new_session=True)


def _deaf(argv: Sequence[str]) -> list[str]:
    """The same command, deaf to SIGTERM: what it asks for makes Slurm send that to every process of the job."""
    return ["/bin/sh", "-c", "trap '' TERM; exec \"$@\"", "sh", *argv]


def _new_job(run: RunDir, plan: Plan, end: AttemptEnd, job: str, why: str) -> str:
    """Another job of the same run; gives why there is none. The attempt that was to be that job's is then this one's,
    which may be requeued yet: status asks Slurm for the job of the newest attempt."""
    after, _ = new_attempt(run, plan.cluster, "requeue", end.cause, kind="slurm")
    try:
        hand_over(parcel_of(run, after))
    except NotStarted as refusal:
        if owner_of(run, after, job) == job:  # and no other machine has handed it over meanwhile
            message = f"no new job: {refusal}"
            write_end(run, after, AttemptEnd(State.QUEUED, end.cause, end.exit_code, time.time(), message), plan)
            return str(refusal)
    except Unreachable as error:
        print(f"{error}; `launch status` finds out whether the job exists", file=sys.stderr)
        return ""
    handle = read_record(after.handle, Handle)
    _note(run, after, f"{why}: the run goes on in job {handle.job_id if handle else '?'}")
    return ""


def _note(run: RunDir, attempt: AttemptDir, text: str) -> None:
    append_line(run.events, Event(time.time(), attempt.number, "job", text))
