"""What a job finds of the runs that it was to follow: its scheduler knows how their jobs ended, and not how they did.

A run may have gone on in another job than the one that was waited for, and a scheduler may know no other wish than
the end of a job. So a start that no attempt has begun with yet looks at the runs themselves.
"""

from pathlib import Path

import msgspec

from launcher.clusters.batch.queue import Fate, Queue
from launcher.clusters.keeping.attempt_end import cancelled, is_cancelled, write_end
from launcher.clusters.keeping.before_start import BeforeStart
from launcher.clusters.keeping.others import OtherRuns
from launcher.clusters.keeping.queued import say_queued
from launcher.clusters.keeping.wakeup import Wakeup
from launcher.errors import Exit
from launcher.plan.model import Plan
from launcher.plan.queueing import begun
from launcher.rundir.attempts import newest, read_intent, read_plan
from launcher.rundir.durable import readable
from launcher.rundir.layout import AttemptDir, RunDir
from launcher.rundir.records import Handle

_LOOK_S = 5.0


def wait_for_predecessors(queue: Queue, run: RunDir, job: str, wakeup: Wakeup) -> int | None:
    """Returns None once there is nothing left to wait for, or nothing to be done; else the code to leave the job with,
    which is to start again later."""
    attempt = newest(run)
    if attempt is None or attempt.started.exists() or attempt.end.exists():
        return None
    plan = read_plan(run, attempt.number)
    if not plan.awaited or read_intent(attempt).reason == "requeue":
        return None
    waits = BeforeStart(run, attempt, msgspec.structs.replace(begun(plan), awaited=plan.awaited), OtherRuns().look)
    while not is_cancelled(attempt):
        hopeless, reasons = waits.look()
        if hopeless:
            write_end(run, attempt, cancelled(hopeless), plan)
        if hopeless or not reasons:
            return None
        say_queued(run, attempt, "; ".join(reasons))
        if wakeup.stop_asked or wakeup.warned:
            return _put_back(queue, run, attempt, plan, job)
        if queue.leaves_with is not None and queue.follow(job, _jobs_of(plan)):
            return queue.leaves_with
        wakeup.sleep(_LOOK_S)
    return None


def _put_back(queue: Queue, run: RunDir, attempt: AttemptDir, plan: Plan, job: str) -> int:
    """The nodes are taken from it while it waits on them."""
    if queue.fate(job) is Fate.CANCELLED:
        write_end(run, attempt, cancelled(f"its {queue.called} job was cancelled"), plan)
        return Exit.OK
    queue.requeue(job)
    return Exit.OK if queue.leaves_with is None else queue.leaves_with


def _jobs_of(plan: Plan) -> list[str]:
    """Of the runs that it follows, as far as they have jobs by now."""
    newest_ones = (newest(RunDir(Path(one.run_dir))) for one in plan.awaited)
    handles = (readable(one.handle, Handle) for one in newest_ones if one is not None)
    return [handle.job_id for handle in handles if handle is not None and handle.job_id is not None]
