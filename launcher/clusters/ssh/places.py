"""Where a run is and has been: the hosts that its attempts were handed to, but for those that are gone for good."""

import time
from collections.abc import Collection, Sequence

from launcher.clusters.ssh.letters import Place
from launcher.rundir.attempts import attempts
from launcher.rundir.durable import read_record, write_record
from launcher.rundir.layout import AttemptDir, RunDir
from launcher.rundir.records import Gone


def places_of(run: RunDir) -> list[Place]:
    """Where the newest attempt that was handed over from here is."""
    gone = _gone(run)
    for attempt in reversed(attempts(run)):
        places = read_record(attempt.hosts, list[Place])
        if places is not None:
            return [place for place in places if gone.get(place.host.name, 0) < attempt.number]
    return []


def places_ever(run: RunDir, of: Sequence[AttemptDir] | None = None, *, gone_too: bool = False) -> dict[str, Place]:
    """Every host that an attempt, or one of these, was handed to; the newest word on each."""
    gone = {} if gone_too else _gone(run)
    found: dict[str, Place] = {}
    for attempt in attempts(run) if of is None else of:
        for place in read_record(attempt.hosts, list[Place]) or []:
            if gone.get(place.host.name, 0) < attempt.number:
                found[place.host.name] = place
    return found


def gone(run: RunDir) -> set[str]:
    """Those of which a person has said so."""
    return set(_gone(run))


def give_up(run: RunDir, hosts: Collection[str]) -> None:
    """Nobody is to wait for these, which no attempt from the next on has been handed to yet."""
    last = attempts(run)[-1].number
    kept = [one for one in _records(run) if one.host not in hosts]
    write_record(run.gone, [*kept, *(Gone(host, last, time.time()) for host in hosts)])


def take_back(run: RunDir, hosts: Collection[str]) -> None:
    """They have been heard after all."""
    if gone(run) & set(hosts):
        write_record(run.gone, [one for one in _records(run) if one.host not in hosts])


def _gone(run: RunDir) -> dict[str, int]:
    """Each, and the last of the attempts that it is gone for."""
    return {one.host: one.attempt for one in _records(run)}


def _records(run: RunDir) -> list[Gone]:
    return read_record(run.gone, list[Gone]) or []
