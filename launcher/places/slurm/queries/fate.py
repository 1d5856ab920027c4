"""Why Slurm ends a job whose batch process has got SIGTERM. Pure."""

from launcher.places.batch.batch import Fate
from launcher.places.slurm.queries.values import read_fields, read_number

_UNSET = ("", "None", "N/A", "(null)", "Unknown")


def show_job(job: str) -> list[str]:
    """All that the controller knows of this job."""
    return ["scontrol", "--oneliner", "show", "job", job]


def is_expedited(text: str) -> bool:
    """Return whether Slurm puts this job back at once, and first, after it loses a node, by `scontrol show job`."""
    return read_fields(text).get("ExpeditedRequeue") == "Yes"


def fate_of(text: str, restarts: int) -> Fate:
    """From `scontrol show job`; `restarts`: how often the job had been put back when this start of it began."""
    fields = read_fields(text)
    counted = read_number(fields.get("Restarts", ""))
    if counted is None:
        return Fate.UNKNOWN
    if counted > restarts or fields.get("JobState") in ("PENDING", "EXPEDITING"):
        return Fate.QUEUED_AGAIN
    if fields.get("JobState") in ("RUNNING", "SUSPENDED"):
        return Fate.RUNS
    if fields.get("PreemptTime", "") not in _UNSET:
        return Fate.PREEMPTED
    return Fate.TIMED_OUT if fields.get("Reason") == "TimeLimit" else Fate.CANCELLED
