"""Check every host of a pool and the links between them, for `launch doctor POOL`, and leave nothing on them."""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from launcher.errors import BadInput, LaunchError, Unreachable
from launcher.health import ways
from launcher.health.doctor_request import DoctorRequest
from launcher.health.findings import Finding, problem, some, warning
from launcher.health.machine_there import MachineFacts
from launcher.health.network import Member, all_reduce, measured
from launcher.health.session import Helper
from launcher.places.clusters_file import ClusterEntry, pool_of
from launcher.places.ssh.doctor_checks import (
    SeenHost,
    reboot_finding,
    table_finding,
    together,
    trouble_finding,
)
from launcher.places.ssh.facts import WORKDIR, survey
from launcher.places.ssh.pool import hosts_of
from launcher.remote.connect import Line
from launcher.remote.failures import NoAccess
from launcher.remote.parallel import AT_ONCE, answers, connect_all, failures, for_all
from launcher.remote.target import Target, target_of
from launcher.spec.model import SshHost

_LOOK_S = 90.0
_ADDRESS_HINT = "`address:` of the host names one that it has, on the network that the hosts share"
_LOST_HINT = "look whether it is well; the others were measured without it"


@dataclass(frozen=True, slots=True)
class TimedLogin:
    """A connection to a host, made as a run would make it, and the time that this took."""

    line: Line  # the open connection
    key: str  # which of the user's keys the host accepted: the path of its file, or a text
    took_s: float  # seconds


def check_up(request: DoctorRequest, tell: Callable[[str], None]) -> Iterator[Finding]:
    """Yield findings about the hosts; call `tell` with a line of text before each check that takes long.

    A host that cannot be examined is a finding too; raise BadInput if the pool names no hosts.
    """
    request.refuse_all_but("try")
    pool = pool_of(ClusterEntry("ssh", request.cluster, request.defaults))
    hosts = {host.name: host for host in hosts_of(pool)}
    if not hosts:
        raise BadInput(f"{request.cluster}: no hosts are named", "hint: a pool of the clusters file, with `kind: ssh`")
    tell(f"logging in to {len(hosts)} host{'' if len(hosts) == 1 else 's'}")
    # A few at a time: sshd drops at random where many come at once.
    logins = for_all(hosts, lambda _, host: _log_in(target_of(host, agent=pool.agent)), at_once=AT_ONCE)
    opened = answers(logins)
    helpers: dict[str, Helper] = {}
    try:
        results = for_all(opened, lambda name, login: _look(hosts[name], login, helpers))
        troubles = failures(logins) | failures(results)
        found = list(answers(results).values())
        if found:
            yield table_finding(found, len(hosts))
        for name in (name for name in hosts if name in troubles):
            yield trouble_finding(name, troubles[name], alone=not found)
        yield from together(found)
        if found and not pool.shared:
            yield reboot_finding(sorted({host.workdir or WORKDIR for host in hosts.values()}))
        if found:
            yield from _between(found, helpers, opened, request, tell)
    finally:
        for_all(helpers, lambda _, helper: helper.leave())
        for login in opened.values():
            login.line.close()


def _log_in(target: Target) -> TimedLogin:
    """Log in to the host as a run would, and return the connection, the key that the host accepted, and the time that
    this took; raise LaunchError if no key is accepted.

    Several keys are tried one by one, because a connection does not tell which of them it used.
    """
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
    """Log in to the target, and return the connection with the time that the login took; raise LaunchError if it fails.

    `key` says, for the doctor's report, which key was used: the path of its file, or a text such as "a key of the ssh-
    agent". The keys that are tried are those of `target`.
    """
    began = time.monotonic()
    line = connect_all([target], lambda _name, _text: None)[target.name]
    if isinstance(line, LaunchError):
        raise line
    return TimedLogin(line, key, time.monotonic() - began)


def _look(host: SshHost, login: TimedLogin, helpers: dict[str, Helper]) -> SeenHost:
    """Return what the host reports of itself, and what a helper process found by trying it; raise LaunchError if the
    host cannot be examined.

    The helper process is added to `helpers`, under the host's name, and keeps running.
    """
    found = survey(login.line, host)
    facts = found.facts
    helper = helpers[host.name] = Helper(host.name, login.line, facts.python, "machine")
    asked = {"folders": [facts.workdir], "user": facts.user, "torch": bool(facts.torch and found.gpus)}
    try:
        looked = helper.ask({"do": "look", **asked}, MachineFacts, _LOOK_S)
    except Unreachable as error:
        raise Unreachable(f"{host.name}: it could not be looked at: {error.lines[0]}") from error
    if len(looked.folders) != 1:
        raise Unreachable(f"{host.name}: it cannot be examined: it gives an unexpected answer")
    return SeenHost(found, looked, login.took_s, login.key)


def _between(
    hosts: Sequence[SeenHost],
    helpers: Mapping[str, Helper],
    logins: Mapping[str, TimedLogin],
    request: DoctorRequest,
    tell: Callable[[str], None],
) -> Iterator[Finding]:
    """Yield findings about the connections between the hosts and, if the request has a trial, about an all-reduce over
    all of them.

    `helpers` are processes on the hosts and `logins` connections to the hosts, each by the host's name; `tell` is
    called with a line of text before each check that takes long.
    """
    members = [Member(helpers[host.name], host.found.address) for host in hosts]
    found = measured(members, tell)
    apart = [member for member in members if member.closed or member.lost]
    for one in apart:
        lost = one.lost if one.lost.startswith(one.name) else f"{one.name}: {one.lost}"
        text, hint = (f"{one.name} {one.closed}", _ADDRESS_HINT) if one.closed else (lost, _LOST_HINT)
        yield problem("network", text, hint)
    yield from ways.findings([host.name for host in hosts], found)
    without = [host.name for host in hosts if host.found.facts.torch is None]
    if not request.trial:
        return
    if apart or any(way.error for way in found):
        yield warning("all-reduce", "not tried: not all hosts reach each other", "see what is said of the network")
    elif without:
        has = "has" if len(without) == 1 else "have"
        hint = "install torch there, or `python:` of the host names an interpreter that has it"
        yield warning("all-reduce", f"not tried: {some(without)} {has} no torch", hint)
    else:
        tell("an all-reduce over all hosts")
        pythons = {host.name: host.found.facts.python for host in hosts}
        yield all_reduce(members, lambda name: Helper(name, logins[name].line, pythons[name], "reduce", "-P"))
