"""Keep one client to each host that this process asks; a host that did not answer is skipped for a while."""

import threading
from collections.abc import Callable, Sequence
from typing import TypeVar

from launcher.errors import LaunchError, Unreachable
from launcher.places.ssh import pool
from launcher.places.ssh.host_client import HostClient, HostLimits, Place
from launcher.remote.connect import Line
from launcher.remote.failures import SilentMachines
from launcher.remote.parallel import failures, for_all

_clients: dict[Place, HostClient] = {}
_silent = SilentMachines[Place]()
_lock = threading.Lock()

T = TypeVar("T")


def client_to(place: Place, limits: HostLimits | None = None) -> HostClient:
    """Return a client of a host; raise LaunchError if the host cannot be reached.

    As long as the SSH connection to the host stays open, it is the same client, with the `limits` of the first call.
    """
    line = lines_to([place])[place.host.name]
    if not isinstance(line, Line):
        raise line
    with _lock:
        client = _clients.get(place)
        if client is None or not client.over(line):
            client = _clients[place] = HostClient(line, place, limits)
    return client


def lines_to(places: Sequence[Place], *, anew: bool = False) -> dict[str, Line | LaunchError]:
    """Return an SSH connection to each host, all opened at the same time, or the error that prevented it, by the host's
    name. Connections that are still open are used again.

    A host that did not answer in the last 30 seconds is skipped, with the error of that time, unless `anew` is set.
    """
    lines: dict[str, Line | LaunchError] = {
        place.host.name: why for place in places if not anew and (why := _silent.why(place)) is not None
    }
    asked = [place for place in places if place.host.name not in lines]
    lines |= pool.lines_to([place.host for place in asked], agent=any(place.agent for place in asked))
    for place in asked:
        line = lines[place.host.name]
        if isinstance(line, LaunchError):
            _silent.note(place, line)
        else:
            _silent.forget(place)
    return lines


def ask_all(
    places: Sequence[Place], work: Callable[[HostClient], T], *, anew: bool = False
) -> dict[str, T | LaunchError]:
    """Call `work` with a client of each host, for all hosts at the same time; return its results, or the error that
    prevented one, by the host's name.

    A host that did not answer a moment ago is skipped, with that error, unless `anew` is set.
    """
    by_name = {place.host.name: place for place in places}
    lines = lines_to([*by_name.values()], anew=anew)

    def done(name: str, _line: Line) -> T:
        """Return the result for one host."""
        try:
            return work(client_to(by_name[name]))
        except Unreachable as error:  # accepts the login and then does not answer
            _silent.note(by_name[name], error)
            raise

    results: dict[str, T | LaunchError] = {**failures(lines)}
    results |= for_all(pool.working(lines), done)
    return {name: results[name] for name in by_name}
