"""Where a run is and has been: the hosts that its attempts were handed to, but for those that are gone for good."""

from collections.abc import Collection, Sequence

from launcher.clusters.ssh.letters import Place
from launcher.rundir.attempts import attempts
from launcher.rundir.durable import read_record, write_record
from launcher.rundir.layout import AttemptDir, RunDir
from launcher.rundir.records import Gone


def places_of(run: RunDir) -> list[Place]:
    """Where the newest attempt that was handed over from here is."""
    for attempt in reversed(attempts(run)):
        if attempt.hosts.exists():
            return handed_to(run, attempt)
    return []


def handed_to(run: RunDir, attempt: AttemptDir) -> list[Place]:
    """The hosts of one attempt."""
    gone = _gone(run)
    places = read_record(attempt.hosts, list[Place]) or []
    return [place for place in places if gone.get(place.host.name, 0) < attempt.number]


def places_ever(run: RunDir, of: Sequence[AttemptDir] | None = None) -> dict[str, Place]:
    """Every host that an attempt, or one of these, was handed to; the newest word on each."""
    every = attempts(run) if of is None else of
    return {place.host.name: place for attempt in every for place in handed_to(run, attempt)}


def gone_places(run: RunDir) -> dict[str, Place]:
    """Those of which a person has said so, and which no attempt was handed to since."""
    every = [place for attempt in attempts(run) for place in read_record(attempt.hosts, list[Place]) or []]
    awaited = places_ever(run)
    return {place.host.name: place for place in every if place.host.name not in awaited}


def give_up(run: RunDir, hosts: Collection[str]) -> None:
    """Nobody is to wait for these, as far as the attempts go that there are."""
    last = attempts(run)[-1].number
    kept = [one for one in _records(run) if one.host not in hosts]
    write_record(run.gone, [*kept, *(Gone(host, last) for host in hosts)])


def take_back(run: RunDir, hosts: Collection[str]) -> None:
    """They have been heard after all, and may have more to tell."""
    kept = [one for one in _records(run) if one.host not in hosts]
    if len(kept) < len(_records(run)):
        write_record(run.gone, kept)
        for attempt in attempts(run):
            attempt.fetched.unlink(missing_ok=True)


def _gone(run: RunDir) -> dict[str, int]:
    """Each, and the last of the attempts that it is gone for."""
    return {one.host: one.attempt for one in _records(run)}


def _records(run: RunDir) -> list[Gone]:
    return read_record(run.gone, list[Gone]) or []
