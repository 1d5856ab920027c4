"""Record nodes that a run excludes for a while because it lost them, with the evidence.

A person may include them again.
A damaged list counts as empty: it is only a preference, and no run should end because of it.
"""

import time
from collections.abc import Collection

from launcher.run.durable import readable, write_record
from launcher.run.layout import RunDir
from launcher.run.records import Blame


def avoided(run: RunDir, now: float | None = None) -> list[Blame]:
    """Return the nodes and devices that are excluded at this moment."""
    now = time.time() if now is None else now
    return [blame for blame in readable(run.avoided, list[Blame]) or [] if blame.until > now]


def is_over(run: RunDir, now: float) -> bool:
    """Return whether an exclusion has expired that a job may still have been told to observe."""
    return any(blame.until <= now for blame in readable(run.avoided, list[Blame]) or [])


def forget(run: RunDir, now: float) -> None:
    """Remove expired exclusions."""
    write_record(run.avoided, avoided(run, now))


def avoid(run: RunDir, blames: Collection[Blame]) -> None:
    """Exclude these nodes and devices; an earlier exclusion of the same host is replaced."""
    hosts = {blame.host for blame in blames}
    kept = [blame for blame in avoided(run) if blame.host not in hosts]
    write_record(run.avoided, [*kept, *blames])


def pardon(run: RunDir, hosts: Collection[str] = ()) -> list[Blame]:
    """Include these hosts again, or all, and return the exclusions that were removed."""
    before = avoided(run)
    taken_back = [blame for blame in before if not hosts or blame.host in hosts]
    if taken_back:
        write_record(run.avoided, [blame for blame in before if blame not in taken_back])
    return taken_back
