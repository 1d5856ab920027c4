"""Hosts of a pool on which a run from another machine may go on, and was not before."""

import time
from collections.abc import Mapping, Sequence

from launcher.errors import LaunchError
from launcher.places.ssh import pool, run_hosts
from launcher.places.ssh.host_client import Place, settled_in
from launcher.remote.connect import Line
from launcher.remote.parallel import for_all
from launcher.run.durable import make_dir, write_record
from launcher.run.layout import AttemptDir, RunDir
from launcher.spec.model import Ssh

_REST_S = 30.0

_rests: dict[tuple[Ssh, tuple[str, ...]], tuple[float, dict[str, Place | LaunchError]]] = {}


def settled_hosts(ssh: Ssh, only: Sequence[str] | None = None) -> dict[str, Place | LaunchError]:
    """Return how to reach each host of the pool, with our launcher installed there, or why not."""
    surveyed, troubles = pool.surveyed(ssh, only)
    lines = pool.working(pool.lines_to([one.host for one in surveyed.values()], agent=ssh.agent))

    def settle(name: str, line: Line) -> Place:
        found = surveyed[name]
        return Place(found.host, ssh.agent, settled_in(line, found), found.facts.workdir, found.address)

    return {**for_all(lines, settle), **troubles}


def rest_of_pool(run: RunDir, ssh: Ssh) -> dict[str, Place | LaunchError]:
    """Return hosts on which the run's own machine may have resumed it; a process that watches asks them seldom."""
    known = run_hosts.everywhere(run)
    left = tuple(host.name for host in ssh.hosts if host.name not in known)
    until, found = _rests.get((ssh, left), (0.0, {}))
    if time.monotonic() >= until:
        found = settled_hosts(ssh, left) if left else {}
        _rests[ssh, left] = time.monotonic() + _REST_S, found
    return found


def follow(attempt: AttemptDir, hosts: Sequence[str], places: Mapping[str, Place]) -> None:
    """Record the hosts of an attempt that goes on elsewhere, as far as they are in the pool here."""
    make_dir(attempt.path)
    write_record(attempt.hosts, [places[name] for name in dict.fromkeys(hosts) if name in places])
