"""Find the hosts that a run is or was on: those that its attempts were handed to. Users can give up hosts that are
gone.
"""

from collections.abc import Collection, Iterator, Sequence

from launcher.places.ssh.host_client import Place
from launcher.run.attempts import attempts, last_attempt
from launcher.run.durable import read_record, write_record
from launcher.run.layout import AttemptDir, RunDir
from launcher.run.records import Gone, Intent


def places_of(run: RunDir) -> list[Place]:
    """Return the hosts of the newest attempt that this machine handed over, without those that a user gave up since; an
    empty list if it handed none over.
    """
    handed_over = [attempt for attempt in attempts(run) if attempt.hosts.exists()]
    return handed_to(run, handed_over[-1]) if handed_over else []


def handed_to(run: RunDir, attempt: AttemptDir) -> list[Place]:
    """Return the hosts to which one attempt was handed, without those that a user gave up during it or later."""
    return [*places_ever(run, [attempt]).values()]


def places_ever(run: RunDir, of: Sequence[AttemptDir] | None = None) -> dict[str, Place]:
    """Return, by name, every host that an attempt of the run was handed to, with its newest address. Leave out a host
    that a user gave up, unless a later attempt was handed to it again.

    With `of`, only these attempts count.
    """
    last = {one.host: one.attempt for one in _records(run)}
    handed = _handed(attempts(run) if of is None else of)
    return {place.host.name: place for number, place in handed if last.get(place.host.name, 0) < number}


def everywhere(run: RunDir) -> dict[str, Place]:
    """Return, by name, every host that an attempt was handed to, including those that a user gave up."""
    return {place.host.name: place for _, place in _handed(attempts(run))}


def gone(run: RunDir) -> set[str]:
    """Return the names of the hosts that a user gave up and to which no attempt was handed since."""
    return everywhere(run).keys() - places_ever(run).keys()


def is_there(attempt: AttemptDir) -> bool:
    """Return whether the attempt was handed to a pool, so that its ranks write to disks of the pool's hosts, not to
    this machine's.
    """
    intent = read_record(attempt.intent, Intent)
    return intent is None or intent.cluster_kind == "ssh"


def give_up(run: RunDir, hosts: Collection[str]) -> None:
    """Record for the newest attempt and earlier ones that a user gave up these hosts, as they are gone for good. The
    hosts stay given up until `take_back`.
    """
    last = last_attempt(run).number
    kept = [one for one in _records(run) if one.host not in hosts]
    write_record(run.gone, [*kept, *(Gone(host, last) for host in hosts)])


def take_back(run: RunDir, hosts: Collection[str]) -> None:
    """Record that `hosts` answered after all, so that those of them that a user gave up as gone for good count as hosts
    of the run again. If there are any such, mark the files of all attempts as not fetched, so that the next fetch asks
    these hosts too.
    """
    before = _records(run)
    kept = [one for one in before if one.host not in hosts]
    if len(kept) < len(before):
        write_record(run.gone, kept)
        for attempt in attempts(run):
            attempt.fetched.unlink(missing_ok=True)


def _handed(of: Sequence[AttemptDir]) -> Iterator[tuple[int, Place]]:
    """Yield (attempt number, host) for each host of each attempt."""
    for attempt in of:
        for place in read_record(attempt.hosts, list[Place]) or []:
            yield attempt.number, place


def _records(run: RunDir) -> list[Gone]:
    """Return a record for each host of the run that a user gave up, in the order in which they were given up."""
    return read_record(run.gone, list[Gone]) or []
