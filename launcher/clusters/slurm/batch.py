"""The batch process of a Slurm job, and the keeper of the run's attempts in it. It is all that the script runs.

    python -m launcher.clusters.slurm.batch RUN_DIR            or, in an array, the folder with the list of runs

A start of the job claims the attempt that it was submitted for; a start after a requeue opens the next attempt, behind
the fence. When an attempt ends and another is to follow, it follows in this allocation where that can be, else in the
same job after a requeue, else in a new job. A run that has ended is never requeued.
"""

import os
import sys
from pathlib import Path

from launcher.agent.memory_tier import close_tier
from launcher.clusters.keeping.allocation import Allocation
from launcher.clusters.keeping.own_log import log_to
from launcher.clusters.keeping.wakeup import Wakeup
from launcher.clusters.slurm.claims import claim, job_id
from launcher.clusters.slurm.hosts import addresses_of, hosts_of, seated
from launcher.clusters.slurm.next_job import follow
from launcher.clusters.slurm.parcels import run_of_element
from launcher.clusters.slurm.steps import posts
from launcher.clusters.slurm.wishes import WARNINGS, SlurmWishes
from launcher.errors import Exit, LaunchError
from launcher.rundir.attempts import read_plan
from launcher.rundir.durable import write_record
from launcher.rundir.fence import raise_fence
from launcher.rundir.layout import RunDir
from launcher.words import State

# What Slurm sets for the batch process alone, and srun would take to the other hosts: they are not this one.
_OF_THIS_HOST = ("HOSTNAME", "ENVIRONMENT")


def main() -> int:
    """Gives the run's exit code; Slurm's records then say the same as ours."""
    os.umask(0o077)
    for name in _OF_THIS_HOST:
        os.environ.pop(name, None)
    bell = Wakeup(WARNINGS)
    try:
        run = run_of_element(Path(sys.argv[1]), os.environ.get("SLURM_ARRAY_TASK_ID"))
        return keep(run, job_id(), bell) if run is not None else Exit.OK
    except LaunchError as error:
        print(error, file=sys.stderr)
        return error.exit_code


def keep(run: RunDir, job: str, bell: Wakeup) -> int:
    """Carry out one attempt after the other, as long as this allocation can."""
    attempt = claim(run, job)
    hosts = hosts_of(os.environ["SLURM_JOB_NODELIST"])
    addresses = addresses_of(hosts)
    while attempt is not None:
        log_to(attempt.keeper_log)
        raise_fence(run, attempt.number)
        plan = seated(read_plan(run, attempt.number), hosts, addresses)
        write_record(attempt.plan, plan)
        wishes = SlurmWishes(bell, attempt, plan, job)
        end = Allocation(run, attempt, plan, bell, wishes, posts(plan, attempt)).carry_out()
        close_tier(Path(plan.run_dir), attempt.number)
        if end.state is not State.QUEUED:
            return end.exit_code
        attempt = follow(run, attempt, plan, end, job, bell)
    return Exit.OK


if __name__ == "__main__":
    sys.exit(main())
