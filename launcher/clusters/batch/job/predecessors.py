"""What a job finds of the runs that it was to follow: its scheduler knows how their jobs ended, and not how they did.

A run may have gone on in another job than the one that was waited for, and a scheduler may know no other wish than
the end of a job. So a start that no attempt has begun with yet looks at the runs themselves.
"""

from pathlib import Path

import msgspec

from launcher.clusters.batch.queue import Fate, Queue
from launcher.clusters.other_runs import OtherRuns
from launcher.errors import Exit
from launcher.plan.model import Plan
from launcher.plan.queueing import begun
from launcher.rundir.attempts import newest, read_intent, read_plan
from launcher.rundir.durable import readable
from launcher.rundir.layout import AttemptDir, RunDir
from launcher.rundir.records import Handle
from launcher.supervisor.attempt_end import cancelled, is_cancelled, write_end
from launcher.supervisor.waiting import Turn, Waiter
from launcher.supervisor.wakeup import Wakeup

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
    awaited = msgspec.structs.replace(begun(plan), awaited=plan.awaited)
    follows = False

    def leaves() -> bool:
        nonlocal follows
        follows = queue.leaves_with is not None and queue.follow(job, _jobs_of(plan))
        return follows or wakeup.warned or is_cancelled(attempt)

    turn = Waiter(run, attempt, awaited, OtherRuns().look).wait(wakeup, every_s=_LOOK_S, leaves=leaves)
    if turn is not Turn.STOPPED or is_cancelled(attempt):
        return None
    return queue.leaves_with if follows else _put_back(queue, run, attempt, plan, job)


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
