"""Where a run is and has been: the hosts that its attempts were handed to."""

from collections.abc import Sequence

from launcher.clusters.ssh.letters import Place
from launcher.rundir.attempts import attempts
from launcher.rundir.durable import read_record
from launcher.rundir.layout import AttemptDir, RunDir


def places_of(run: RunDir) -> list[Place]:
    """Where the newest attempt that was handed over from here is."""
    for attempt in reversed(attempts(run)):
        places = read_record(attempt.hosts, list[Place])
        if places is not None:
            return places
    return []


def places_ever(run: RunDir, of: Sequence[AttemptDir] | None = None) -> dict[str, Place]:
    """Every host that an attempt, or one of these, was handed to; the newest word on each."""
    found: dict[str, Place] = {}
    for attempt in attempts(run) if of is None else of:
        for place in read_record(attempt.hosts, list[Place]) or []:
            found[place.host.name] = place
    return found
