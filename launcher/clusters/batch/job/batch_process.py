"""The batch process of a job: it supervises the run's attempts in it, and is all that the script runs.

    python -m launcher.supervisor launcher.clusters.batch.job.batch_process:BatchSupervisor RUN_DIR KIND [SIGNAL]

RUN_DIR is in an array the folder with the list of runs. SIGNAL has killed the supervisor before this one, in the same
start of the job.

A start of the job claims the attempt that it was submitted for; a start after a requeue opens the next attempt, behind
the fence. When an attempt ends and another is to follow, it follows in this allocation where that can be, else in the
same job after a requeue, else in a new job. A run that has ended is never requeued.
"""

import os
import signal
import sys
from pathlib import Path
from typing import BinaryIO

from launcher.agent.memory.tier import close_tier
from launcher.agent.processes import die_with, end_all, tagged
from launcher.clusters.batch.cluster import queue_of
from launcher.clusters.batch.hand_over import run_of_element
from launcher.clusters.batch.job.claims import claim
from launcher.clusters.batch.job.drains import watched_for_drains
from launcher.clusters.batch.job.guard import HEARD
from launcher.clusters.batch.job.next_job import NextJob
from launcher.clusters.batch.job.nodes import seated
from launcher.clusters.batch.job.predecessors import wait_for_predecessors
from launcher.clusters.batch.job.wishes import BatchWishes
from launcher.clusters.batch.queue import JobStart, Queue
from launcher.errors import Exit
from launcher.rundir.attempts import read_plan
from launcher.rundir.durable import write_record
from launcher.rundir.fence import raise_fence
from launcher.rundir.layout import RunDir
from launcher.supervisor.__main__ import main
from launcher.supervisor.allocation import Allocation
from launcher.supervisor.own_log import log_to
from launcher.supervisor.strategy import Strategy
from launcher.supervisor.wakeup import Wakeup
from launcher.words import State

# What a scheduler sets for the batch process alone, and would take to the other hosts: they are not this one.
_OF_THIS_HOST = ("HOSTNAME", "ENVIRONMENT")
_TOLD_WITHIN_S = 30.0  # so long the job of a run that has ended stays for those who are to hear of it


class BatchSupervisor(Strategy):
    """Words: KIND [SIGNAL]."""

    stands_by = False

    def supervise(self, go: BinaryIO) -> int:
        """Return the run's exit code; the scheduler's records then say what ours do."""
        go.close()
        die_with(os.getppid())  # else Slurm's end of a job without its guard would seem to be a person's
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
        return keep(queue, run, start, wakeup, int(self.words[1]) if len(self.words) > 1 else None)


def keep(queue: Queue, run: RunDir, start: JobStart, wakeup: Wakeup, killed_by: int | None) -> int:
    """Carry out one attempt after the other, as long as this allocation can."""
    if killed_by is not None:
        end_all(lambda: tagged(str(run.path), os.getuid()))
    if (put_back := wait_for_predecessors(queue, run, start.job, wakeup)) is not None:
        return put_back
    attempt, code = claim(queue, run, start.job, killed_by), int(Exit.OK)
    hosts = queue.hosts()
    while attempt is not None:
        log_to(attempt.keeper_log)
        raise_fence(run, attempt.number)
        plan = seated(read_plan(run, attempt.number), hosts)
        write_record(attempt.plan, plan)
        wishes = BatchWishes(queue, wakeup, attempt, plan, start.job)
        agents = queue.processes(plan, attempt)
        with watched_for_drains(queue, attempt, plan):
            end = Allocation(run, attempt, plan, wakeup, wishes, agents, told_within_s=_TOLD_WITHIN_S).carry_out()
        close_tier(Path(plan.run_dir), attempt.number)
        if end.state is not State.QUEUED:
            return end.exit_code
        attempt, code = NextJob(queue, run, plan, start.job, wakeup).follow(attempt, end)
    return code


if __name__ == "__main__":  # scripts of an older version, which wait in a queue, have KIND RUN_DIR [SIGNAL]
    kind, folder, *killed_by = sys.argv[1:]
    sys.exit(main(["launcher.clusters.batch.job.batch_process:BatchSupervisor", folder, kind, *killed_by]))
