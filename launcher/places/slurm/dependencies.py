"""Translate the runs that a job waits for into options of Slurm."""

from collections.abc import Sequence

from launcher.places.batch.dependencies import jobs_to_follow
from launcher.plan.model import AwaitedRun

_WORDS = {"succeeded": "afterok", "ended": "afterany"}


def dependency_of(awaited: Sequence[AwaitedRun]) -> str:
    """Return the value of --dependency, or "" if all that the run waits for has happened."""
    return ",".join(f"{_WORDS[one.until]}:{job}" for one, job in jobs_to_follow(awaited))
