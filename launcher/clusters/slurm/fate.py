"""Why Slurm ends a job whose batch process has got SIGTERM. `show_job` and `fate_of` are pure."""

import os
import re

from launcher.clusters.batch.queue import Fate
from launcher.clusters.slurm.reach import ask
from launcher.errors import Unreachable

_FIELD = re.compile(r"(?:^|\s)(\w+)=(\S*)")
_UNSET = ("", "None", "N/A", "(null)", "Unknown")


def fate(job: str) -> Fate:
    try:
        answer = ask(show_job(job))
    except Unreachable:
        return Fate.UNKNOWN
    return fate_of(answer.out, int(os.environ.get("SLURM_RESTART_COUNT") or 0))


def show_job(job: str) -> list[str]:
    return ["scontrol", "--oneliner", "show", "job", job]


def fate_of(text: str, restarts: int) -> Fate:
    """From `scontrol show job`; `restarts`: how often the job had been put back when this start of it began."""
    fields = dict(_FIELD.findall(text))
    counted = fields.get("Restarts", "")
    if not counted.isdigit():
        return Fate.UNKNOWN
    if int(counted) > restarts or fields.get("JobState") == "PENDING":
        return Fate.QUEUED_AGAIN
    if fields.get("JobState") in ("RUNNING", "SUSPENDED"):
        return Fate.RUNS
    if fields.get("PreemptTime", "") not in _UNSET:
        return Fate.PREEMPTED
    return Fate.TIMED_OUT if fields.get("Reason") == "TimeLimit" else Fate.CANCELLED
