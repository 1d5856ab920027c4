"""The hosts of a pool as one process uses them: connections that stay open, and what was found on them."""

import threading
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache

from launcher.copies import news
from launcher.errors import LaunchError
from launcher.places.ssh.facts import Surveyed, completed, survey
from launcher.remote import connections
from launcher.remote.connect import Line
from launcher.remote.parallel import failures, for_all
from launcher.remote.target import Target, target_of
from launcher.spec.model import Ssh, SshHost

_troubles: dict[SshHost, LaunchError] = {}
_lock = threading.Lock()


def hosts_of(pool: Ssh) -> list[SshHost]:
    """Return the hosts of the pool, each with the pool's options filled in."""
    return [completed(host, pool) for host in pool.hosts]


def lines_to(hosts: Iterable[SshHost], *, agent: bool) -> dict[str, Line | LaunchError]:
    """Return an SSH connection to each host, by its name, or the error; a connection stays open until this process
    ends.

    With `agent`, keys of the user's ssh-agent are tried too.
    """
    wanted = {host.name: host for host in hosts}
    targets = for_all(wanted, lambda _, host: _target(host, agent))
    found = connections.lines_to(
        [one for one in targets.values() if isinstance(one, Target)], lambda host, text: news.say(f"{host}: {text}")
    )
    return {name: found[name] if isinstance(one, Target) else one for name, one in targets.items()}


@lru_cache(maxsize=4096)
def _target(host: SshHost, agent: bool) -> Target:
    """Return how to reach a host over SSH; with `agent`, keys of the user's ssh-agent are tried too."""
    return target_of(host, agent=agent)


def working(lines: Mapping[str, Line | LaunchError]) -> dict[str, Line]:
    """Return the connections in `lines`, by host, without the errors."""
    return {name: line for name, line in lines.items() if isinstance(line, Line)}


def surveyed(pool: Ssh, only: Sequence[str] | None = None) -> tuple[dict[str, Surveyed], dict[str, LaunchError]]:
    """Log in to the hosts of the pool, or only to those named in `only`, and find out what each has, such as GPUs and
    memory.

    Return two dicts by host name, in the pool's order: the facts about each host that could be examined, and for each
    other host the error. `troubles_of` returns the errors later.
    """
    hosts = {host.name: host for host in hosts_of(pool) if only is None or host.name in only}
    lines = lines_to(hosts.values(), agent=pool.agent)
    found = for_all(working(lines), lambda name, line: survey(line, hosts[name]))
    results = {name: found.get(name, lines[name]) for name in hosts}
    there = {name: one for name, one in results.items() if isinstance(one, Surveyed)}
    troubles = failures(results)
    with _lock:
        for name, host in hosts.items():
            if name in troubles:
                _troubles[host] = troubles[name]
            else:
                _troubles.pop(host, None)
    return there, troubles


def troubles_of(pool: Ssh) -> dict[str, LaunchError]:
    """Return, by host name, why this process could not examine hosts of the pool at its last attempt for each. Hosts
    that it examined, and those it never tried, are left out; nothing is asked now.
    """
    with _lock:
        return {host.name: _troubles[host] for host in hosts_of(pool) if host in _troubles}
