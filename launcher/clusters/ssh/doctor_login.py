"""Logging in to every host of a pool as a run would, and how it went: how long it took, and which key opened."""

import threading
import time
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

from launcher.errors import LaunchError
from launcher.hostlink import parallel
from launcher.hostlink.connect import Line
from launcher.hostlink.failures import NoAccess
from launcher.hostlink.target import Target, target_of
from launcher.spec.model import SshHost

_OF_THE_AGENT = "a key of the ssh-agent"


@dataclass(frozen=True, slots=True)
class Login:
    """A connection to a host."""

    line: Line
    key: str
    took_s: float


def log_in(hosts: Iterable[SshHost], *, agent: bool) -> dict[str, Login | LaunchError]:
    """By name, in the order given; a few at a time."""
    wanted: dict[str, Any] = {host.name: host for host in hosts}
    room = threading.Semaphore(parallel.AT_ONCE)

    def one(_: str, host: Any) -> Login:
        with room:
            return _login(target_of(host, agent=agent))

    return parallel.for_all(wanted, one)


def _login(target: Target) -> Login:
    """Where there are several keys, they are tried one by one: a connection does not tell which of them it took."""
    if len(target.keys) + target.agent > 1:
        for key in target.keys:
            try:
                return _timed(replace(target, keys=(key,), agent=False), str(key))
            except NoAccess:
                continue
    return _timed(target, _OF_THE_AGENT if target.agent else str(target.keys[0]) if target.keys else "none")


def _timed(target: Target, key: str) -> Login:
    began = time.monotonic()
    line = parallel.connect_all([target], lambda _name, _text: None)[target.name]
    if isinstance(line, LaunchError):
        raise line
    return Login(line, key, time.monotonic() - began)
