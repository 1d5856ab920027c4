"""Nodes that a run avoids for a while because it lost them, with the evidence; a person may pardon them.

A list that is damaged is none: it is a preference, and no run ends for it."""

import time
from collections.abc import Collection

from launcher.run.durable import readable, write_record
from launcher.run.layout import RunDir
from launcher.run.records import Blame


def avoided(run: RunDir, now: float | None = None) -> list[Blame]:
    """What is not to be used at this moment."""
    now = time.time() if now is None else now
    return [blame for blame in readable(run.avoided, list[Blame]) or [] if blame.until > now]


def is_over(run: RunDir, now: float) -> bool:
    """Whether the time of any is over that a job may still have been told to avoid."""
    return any(blame.until <= now for blame in readable(run.avoided, list[Blame]) or [])


def forget(run: RunDir, now: float) -> None:
    """Whose time is over: no job avoids them any more."""
    write_record(run.avoided, avoided(run, now))


def avoid(run: RunDir, blames: Collection[Blame]) -> None:
    """Add these; a host that is blamed again is blamed anew."""
    hosts = {blame.host for blame in blames}
    kept = [blame for blame in avoided(run) if blame.host not in hosts]
    write_record(run.avoided, [*kept, *blames])


def pardon(run: RunDir, hosts: Collection[str] = ()) -> list[Blame]:
    """Let these be used again, or all; gives what was taken back."""
    before = avoided(run)
    taken_back = [blame for blame in before if not hosts or blame.host in hosts]
    if taken_back:
        write_record(run.avoided, [blame for blame in before if blame not in taken_back])
    return taken_back
