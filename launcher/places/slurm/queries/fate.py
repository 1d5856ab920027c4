"""Find out why Slurm ends a job whose batch process got SIGTERM. Pure functions."""

from launcher.places.batch.batch import Fate
from launcher.places.slurm.queries.values import read_fields, read_number

_UNSET = ("", "None", "N/A", "(null)", "Unknown")


def show_job(job: str) -> list[str]:
    """Return the command that shows all that the controller knows of this job."""
    return ["scontrol", "--oneliner", "show", "job", job]


def is_expedited(text: str) -> bool:
    """Return whether Slurm puts this job back at once, and first, after it loses a node, by `scontrol show job`."""
    return read_fields(text).get("ExpeditedRequeue") == "Yes"


def fate_of(text: str, restarts: int) -> Fate:
    """Return the fate from `scontrol show job`; `restarts` is how often the job had been put back when this
    start began.
    """
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
