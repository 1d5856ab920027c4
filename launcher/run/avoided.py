"""The file avoided.json of a run: hosts and devices that it excludes for a while because it lost them, with the
evidence. Times are Unix times.

A user may include hosts again. A damaged file counts as empty: the list is only a preference, and no run should end
because of it.
"""

import time
from collections.abc import Collection

from launcher.run.durable import readable, write_record
from launcher.run.layout import RunDir
from launcher.run.records import Exclusion


def avoided(run: RunDir, now: float | None = None) -> list[Exclusion]:
    """Return the exclusions that are in force at the time `now`, by default the current time."""
    now = time.time() if now is None else now
    return [exclusion for exclusion in readable(run.avoided, list[Exclusion]) or [] if exclusion.until > now]


def has_expired(run: RunDir, now: float) -> bool:
    """Return whether the file still lists an exclusion that has expired by `now`; a queued job may then be allowed on
    that host again.
    """
    return any(exclusion.until <= now for exclusion in readable(run.avoided, list[Exclusion]) or [])


def forget(run: RunDir, now: float) -> None:
    """Remove the exclusions that have expired by `now` from the file."""
    write_record(run.avoided, avoided(run, now))


def avoid(run: RunDir, exclusions: Collection[Exclusion]) -> None:
    """Add exclusions to the file. They replace earlier ones of the same hosts, and expired ones are removed."""
    hosts = {exclusion.host for exclusion in exclusions}
    kept = [exclusion for exclusion in avoided(run) if exclusion.host not in hosts]
    write_record(run.avoided, [*kept, *exclusions])


def include(run: RunDir, hosts: Collection[str] = ()) -> list[Exclusion]:
    """Remove the exclusions of `hosts`, or all if none is named, and return those that were removed."""
    before = avoided(run)
    taken_back = [exclusion for exclusion in before if not hosts or exclusion.host in hosts]
    if taken_back:
        write_record(run.avoided, [exclusion for exclusion in before if exclusion not in taken_back])
    return taken_back
