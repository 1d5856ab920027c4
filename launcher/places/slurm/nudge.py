"""Make a requeued job start at a chosen time, by a short-lived process that outlives the batch process; otherwise Slurm
lets it wait for two minutes.

    python -m launcher.programs nudge JOB DELAY_S [HOSTS_TO_LEAVE_OUT]

Slurm changes only a job that waits, and the job waits only once the batch process that requeued it has exited; so this
process outlives that one for a moment. If the site ends this process together with the job, Slurm's own delay applies.
"""

import time
from collections.abc import Sequence

from launcher.errors import Unreachable
from launcher.places.slurm.queries.jobs import update
from launcher.places.slurm.queries.nodes import hostlist
from launcher.places.slurm.reach import ask

# A node that has just ended the job refuses a new start of it whose credential is of the same second, or, where its
# clock is a little ahead, of the next one; Slurm then gives the job up.
_SAFE_S = 3
_LIMIT_S = 30.0
_STEP_S = 0.05


def main(argv: Sequence[str]) -> int:
    """Make the waiting job `argv[0]` start `argv[1]` seconds from now, but at least 3, on none of the hosts that follow
    in `argv`. Return 0 once Slurm has accepted that, or 1 if it cannot be reached or has not within 30 seconds.
    """
    job, delay_s, *hosts = argv
    start = f"now+{max(_SAFE_S, round(float(delay_s)))}"
    left_out = hostlist(hosts)  # none: those that an earlier start avoided may be used again
    deadline = time.monotonic() + _LIMIT_S
    while time.monotonic() < deadline:
        try:
            if ask(update(job, StartTime=start, ExcNodeList=left_out), limit_s=_LIMIT_S).code == 0:
                return 0
        except Unreachable:
            return 1
        time.sleep(_STEP_S)  # the job's old processes are still being ended, and no event shows their end
    return 1
