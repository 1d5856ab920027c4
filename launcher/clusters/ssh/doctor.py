"""`launch doctor POOL`: every host of a pool, and the ways between them. Nothing of ours is left there."""

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import msgspec

from launcher.clusters.clusters_file import ClusterEntry, pool_of
from launcher.clusters.ssh.doctor_checks import SeenHost, table_finding, together, trouble_finding
from launcher.clusters.ssh.facts import survey
from launcher.clusters.ssh.pool import hosts_of
from launcher.doctor.findings import Finding, warning
from launcher.doctor.look_there import MARK, NodeFacts
from launcher.doctor.network import ways
from launcher.doctor.network.helper import Member
from launcher.doctor.network.measure import Measurer, measured
from launcher.doctor.network.reduce import all_reduce
from launcher.doctor.programs import text_of
from launcher.doctor.wish import DoctorWish
from launcher.doctor.words import some
from launcher.errors import BadInput, LaunchError, Unreachable
from launcher.hostlink.connect import Line
from launcher.hostlink.failures import NoAccess
from launcher.hostlink.parallel import AT_ONCE, connect_all, failures, for_all
from launcher.hostlink.target import Target, target_of
from launcher.spec.model import SshHost

_LOOK_S = 90.0


@dataclass(frozen=True, slots=True)
class TimedLogin:
    """A connection to a host, as a run would have it."""

    line: Line
    key: str  # that opened
    took_s: float


def check_up(wish: DoctorWish, tell: Callable[[str], None]) -> Iterator[Finding]:
    """All about the hosts, as it is found. `tell` hears what takes long."""
    wish.refuse_all_but("try")
    pool = pool_of(ClusterEntry("ssh", wish.cluster, wish.defaults))
    hosts = {host.name: host for host in hosts_of(pool)}
    if not hosts:
        raise BadInput(f"{wish.cluster}: no hosts are named", "hint: a pool of the clusters file, with `kind: ssh`")
    tell(f"logging in to {len(hosts)} host{'' if len(hosts) == 1 else 's'}")
    # A few at a time: sshd drops at random where many come at once.
    logins = for_all(hosts, lambda _, host: _log_in(target_of(host, agent=pool.agent)), at_once=AT_ONCE)
    opened = {name: one for name, one in logins.items() if isinstance(one, TimedLogin)}
    helpers: dict[str, Measurer] = {}

    def looked_at(name: str, login: TimedLogin) -> SeenHost:
        host = look(hosts[name], login)
        helpers[name] = Measurer(Member(name, login.line, host.found.facts.python, host.found.address))
        return host

    try:
        results = for_all(opened, looked_at)
        troubles = failures(logins) | failures(results)
        found = [one for one in results.values() if isinstance(one, SeenHost)]
        if found:
            yield table_finding(found, len(hosts))
        for name in (name for name in hosts if name in troubles):
            yield trouble_finding(name, troubles[name], alone=not found)
        yield from together(found)
        if found:
            yield from _between(found, [helpers[host.name] for host in found], wish, tell)
    finally:
        for_all(helpers, lambda _, helper: helper.leave())
        for login in opened.values():
            login.line.close()


def _log_in(target: Target) -> TimedLogin:
    """Where there are several keys, they are tried one by one: a connection does not tell which of them it took."""
    if target.transport == "openssh":
        return _timed(target, "as OpenSSH finds it")
    if len(target.keys) + target.agent > 1:
        for key in target.keys:
            try:
                return _timed(replace(target, keys=(key,), agent=False), str(key))
            except NoAccess:
                continue
    return _timed(target, "a key of the ssh-agent" if target.agent else str(target.keys[0]) if target.keys else "none")


def _timed(target: Target, key: str) -> TimedLogin:
    began = time.monotonic()
    line = connect_all([target], lambda _name, _text: None)[target.name]
    if isinstance(line, LaunchError):
        raise line
    return TimedLogin(line, key, time.monotonic() - began)


def look(host: SshHost, login: TimedLogin) -> SeenHost:
    """What the host says of itself, and what only trying tells. Raises LaunchError."""
    found = survey(login.line, host)
    facts = found.facts
    asked = {"folders": [facts.workdir], "user": facts.user}
    if facts.torch and found.gpus:
        asked["torch"] = text_of("torch")
    words = [facts.python, "-I", "-c", text_of("look"), msgspec.json.encode(asked).decode()]
    done = login.line.run(words, limit_s=_LOOK_S)
    for row in done.out.decode(errors="replace").splitlines():
        if row.startswith(MARK):
            looked = msgspec.json.decode(row.removeprefix(MARK), type=NodeFacts)
            return SeenHost(found, looked, login.took_s, login.key)
    said = done.err.decode(errors="replace").strip().splitlines() or [f"exit code {done.code}"]
    raise Unreachable(f"{host.name}: it could not be looked at: {said[-1]}")


def _between(
    hosts: Sequence[SeenHost], helpers: Sequence[Measurer], wish: DoctorWish, tell: Callable[[str], None]
) -> Iterator[Finding]:
    """The ways between them, and what goes over all of them."""
    found, troubles = measured(helpers, tell)
    yield from troubles
    yield from ways.findings([host.name for host in hosts], found)
    without = [host.name for host in hosts if host.found.facts.torch is None]
    if not wish.trial:
        return
    if troubles or any(way.error for way in found):
        yield warning("all-reduce", "not tried: not all hosts reach each other", "see what is said of the network")
    elif without:
        has = "has" if len(without) == 1 else "have"
        hint = "install torch there, or `python:` of the host names an interpreter that has it"
        yield warning("all-reduce", f"not tried: {some(without)} {has} no torch", hint)
    else:
        tell("an all-reduce over all hosts")
        yield all_reduce([helper.member for helper in helpers])
