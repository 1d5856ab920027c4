"""Record nodes that a run excludes for a while because it lost them, with the evidence.

A user may include them again. A damaged list counts as empty: it is only a preference, and no run should end because of
it.
"""

import time
from collections.abc import Collection

from launcher.run.durable import readable, write_record
from launcher.run.layout import RunDir
from launcher.run.records import Exclusion


def avoided(run: RunDir, now: float | None = None) -> list[Exclusion]:
    """Return the nodes and devices that are excluded at this moment."""
    now = time.time() if now is None else now
    return [exclusion for exclusion in readable(run.avoided, list[Exclusion]) or [] if exclusion.until > now]


def is_over(run: RunDir, now: float) -> bool:
    """Return whether the list still has an exclusion that has expired by `now`; a waiting job may observe it."""
    return any(exclusion.until <= now for exclusion in readable(run.avoided, list[Exclusion]) or [])


def forget(run: RunDir, now: float) -> None:
    """Remove the exclusions that have expired by `now`."""
    write_record(run.avoided, avoided(run, now))


def avoid(run: RunDir, exclusions: Collection[Exclusion]) -> None:
    """Add exclusions of nodes and devices to the list, in place of earlier ones of the same hosts and expired ones."""
    hosts = {exclusion.host for exclusion in exclusions}
    kept = [exclusion for exclusion in avoided(run) if exclusion.host not in hosts]
    write_record(run.avoided, [*kept, *exclusions])


def include(run: RunDir, hosts: Collection[str] = ()) -> list[Exclusion]:
    """Include `hosts` again, or without any all excluded hosts, and return the exclusions that were removed."""
    before = avoided(run)
    taken_back = [exclusion for exclusion in before if not hosts or exclusion.host in hosts]
    if taken_back:
        write_record(run.avoided, [exclusion for exclusion in before if exclusion not in taken_back])
    return taken_back
