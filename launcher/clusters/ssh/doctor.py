"""`launch doctor POOL`: every host of a pool, and the ways between them. Nothing of ours is left there."""

from collections.abc import Callable, Iterator, Mapping, Sequence

from launcher.clusters.ssh.doctor_hosts import Host, look, table_finding, together, trouble_finding
from launcher.clusters.ssh.doctor_login import Login, log_in
from launcher.clusters.ssh.doctor_network import Helper, measured
from launcher.clusters.ssh.doctor_reduce import all_reduce
from launcher.clusters.ssh.facts import survey
from launcher.clusters.ssh.pool import hosts_of
from launcher.doctor.findings import Finding, warning
from launcher.doctor.network import ways as doctor_ways
from launcher.hostlink.connect import Line
from launcher.hostlink.parallel import failures, for_all
from launcher.spec.model import Ssh


def check_up(pool: Ssh, *, trial: bool, tell: Callable[[str], None]) -> Iterator[Finding]:
    """All about the hosts, as it is found. `tell` hears what takes long."""
    hosts = {host.name: host for host in hosts_of(pool)}
    tell(f"logging in to {len(hosts)} host{'' if len(hosts) == 1 else 's'}")
    logins = log_in(hosts.values(), agent=pool.agent)
    opened = {name: one for name, one in logins.items() if isinstance(one, Login)}
    lines = {name: one.line for name, one in opened.items()}
    helpers: dict[str, Helper] = {}

    def looked_at(name: str, line: Line) -> Host:
        found = survey(line, hosts[name])
        host = Host(found, look(line, found), opened[name].took_s, opened[name].key)
        helpers[name] = Helper(line, found)
        return host

    try:
        results = for_all(lines, looked_at)
        troubles = failures(logins) | failures(results)
        found = [one for one in results.values() if isinstance(one, Host)]
        if found:
            yield table_finding(found, len(hosts))
        for name in hosts:
            if name in troubles:
                yield trouble_finding(name, troubles[name], alone=not found)
        yield from together(found)
        if found:
            yield from _together(found, [helpers[host.name] for host in found], lines, trial=trial, tell=tell)
    finally:
        for_all({name: lines[name] for name in helpers}, lambda name, _: helpers[name].leave())
        for line in lines.values():
            line.close()


def _together(
    hosts: Sequence[Host],
    helpers: Sequence[Helper],
    lines: Mapping[str, Line],
    *,
    trial: bool,
    tell: Callable[[str], None],
) -> Iterator[Finding]:
    ways, troubles = measured(helpers, lines, tell)
    yield from troubles
    yield from doctor_ways.findings([host.name for host in hosts], ways)
    if trial and (troubles or any(way.error for way in ways)):
        yield warning("all-reduce", "not tried: not all hosts reach each other", "see what is said of the network")
    elif trial:
        tell("an all-reduce over all hosts")
        yield all_reduce([host.found for host in hosts], lines)
