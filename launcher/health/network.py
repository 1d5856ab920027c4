"""Measure the links between the hosts of a pool, in rounds in which each host has one partner, and run one all-reduce
by torch (gloo) over all of them.
"""

import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

import msgspec

from launcher.errors import LaunchError
from launcher.health.findings import Finding, ok, problem, some
from launcher.health.machine_there import Measured, OpenDoors
from launcher.health.session import Helper, Session
from launcher.health.ways import Way, rounds, slow
from launcher.remote.parallel import answers, failures, for_all

T = TypeVar("T")
_OPEN_S, _CALL_S = 15.0, 30.0
_MOST_AGAIN = 12
_BOOT_S, _REDUCE_S = 120.0, 60.0
_MB = 16
_REDUCE_HINT = (
    "what `network` says of the ways comes first; GLOO_SOCKET_IFNAME is set to the card of the host's address"
)


@dataclass(slots=True)
class Member:
    """A machine that takes part in measurements, and the address by which others reach it.

    It listens on two `ports`, as ranks do: the first is from 20,000 to 32,000, as a MASTER_PORT is, and the kernel
    chooses the second. `closed` says why others cannot connect to it, `lost` why it no longer answers; in both cases it
    no longer takes part.
    """

    session: Session
    address: str
    ports: tuple[int, int] = (0, 0)  # on which it listens for the others; zeros: not yet
    closed: str = ""  # why others cannot connect to it
    lost: str = ""  # why it no longer answers

    @property
    def name(self) -> str:
        """Return the name of the machine."""
        return self.session.name

    def open(self, token: str) -> None:
        """Have the machine listen for the others, which have to prove that they have `token`, and store in `ports` the
        two ports on which it listens.

        No error is raised: if it cannot listen, the reason is in `closed`; if it does not answer, it is in `lost`.
        """
        opened = self._ask({"do": "open", "address": self.address, "token": token}, OpenDoors, _OPEN_S)
        if opened is not None:
            self.ports = opened.ports
            self.closed = opened.error and f"cannot listen on {self.address or 'its address'}: {opened.error}"

    def call(self, other: "Member", token: str, *, flood: bool) -> Way | None:
        """Have this machine connect to another member; return the measured link, or None if either no longer takes
        part.

        Both prove that they have `token`. The round trip is measured and, with `flood`, the rate of data from this
        machine to the other. If the connection fails, the result has the error.
        """
        if self.closed or self.lost or other.closed or other.lost:
            return None
        there = {"address": other.address, "ports": other.ports, "flood": flood}
        found = self._ask({"do": "call", "own": self.address, "token": token, **there}, Measured, _CALL_S)
        if found is None:
            return None
        port = f"{found.port} (as MASTER_PORT has)" if found.port == other.ports[0] else str(found.port)
        at = f"{other.address} port {port}" if found.error else other.address
        return Way(self.name, other.name, found.round_trip_s, found.bytes_per_s, found.error[:200], at)

    def _ask(self, words: Mapping[str, object], answer: type[T], limit_s: float) -> T | None:
        """Return the machine's answer to the request `words`, decoded as `answer`. Return None if it fails or takes
        longer than `limit_s`; the machine then no longer takes part.
        """
        try:
            return self.session.ask(words, answer, limit_s)
        except LaunchError as error:
            self.lost = str(error.lines[0])
            return None


def measured(members: Sequence[Member], tell: Callable[[str], None] | None = None, *, flood: bool = True) -> list[Way]:
    """Measure the links between the members, first in one direction of a pair and then in the other, and return them.

    With `flood` the rates are measured, else round trips only. `tell` (None: nothing) is called with a line at each
    round. A member that others cannot reach, or that stops to answer, takes no further part; its `closed` or `lost`
    says why. A few slow links are measured again at the end, one at a time, and the faster result counts.
    """
    token = secrets.token_hex(32)
    named = {one.name: one for one in members}
    for_all(named, lambda _, one: one.open(token))
    present = [one for one in members if not (one.closed or one.lost)]
    plan = rounds(len(present))
    ways: list[Way] = []

    def both(_: str, pair: tuple[Member, Member]) -> list[Way | None]:
        """Return the measurements of both directions of one pair, each None if a member no longer takes part."""
        return [one.call(other, token, flood=flood) for one, other in (pair, pair[::-1])]

    for number, numbers in enumerate(plan, 1):
        if tell is not None:
            tell(f"ways between hosts: round {number} of {len(plan)}")
        pairs = {present[one].name: (present[one], present[other]) for one, other in numbers}
        ways += [way for found in answers(for_all(pairs, both)).values() for way in found if way]
    for way in slow([way for way in ways if not way.error])[:_MOST_AGAIN]:  # it may be fast alone
        if tell is not None:
            tell(f"again, alone: {way.start} to {way.end}")
        alone = named[way.start].call(named[way.end], token, flood=flood)
        if alone and alone.bytes_per_s > way.bytes_per_s:
            ways[ways.index(way)] = alone
    return ways


class RankAnswer(msgspec.Struct, frozen=True):
    """The answer of one rank of the trial all-reduce: first the port on which it listens, then how long it took and
    whether the result was right, or an error.
    """

    port: int = 0
    took_s: float = 0.0
    right: bool = True
    error: str = ""


def all_reduce(members: Sequence[Member], start: Callable[[str], Helper]) -> Finding:
    """Run an all-reduce with one rank on each member, and return the finding about it; `start` starts `reduce_there` on
    the named host.
    """
    ranks: dict[str, Helper] = {}
    numbers = {member.name: rank for rank, member in enumerate(members)}

    def boot(name: str, member: Member) -> RankAnswer:
        """Start the rank on one member and return its first answer."""
        ranks[name] = start(name)
        words = {"rank": numbers[name], "world": len(members), "address": member.address}
        return ranks[name].ask(words, RankAnswer, _BOOT_S)

    try:
        booted = for_all({member.name: member for member in members}, boot)
        if bad := _errors(booted):
            return _failed(bad)
        go = {"address": members[0].address, "port": max(one.port for one in answers(booted).values())}
        go |= {"limit_s": _REDUCE_S / 2, "mb": _MB}
        done = for_all(ranks, lambda _, rank: rank.ask(go, RankAnswer, _REDUCE_S))
        if bad := _errors(done):
            return _failed(bad)
        took_s = max(one.took_s for one in answers(done).values())
        return ok("all-reduce", f"{_MB} MB over {len(members)} hosts by torch (gloo) in {took_s:.3f} s")
    finally:
        for_all(ranks, lambda _, rank: rank.leave())


def _errors(results: Mapping[str, RankAnswer | LaunchError]) -> dict[str, str]:
    """Return the errors of the ranks that failed, by host; if none failed, those of ranks with a wrong result."""
    words = answers(results)
    said = {name: str(one.lines[0]) for name, one in failures(results).items()}
    said |= {name: one.error for name, one in words.items() if one.error}
    return said or {name: "the sum is wrong" for name, one in words.items() if not one.right}


def _failed(errors: Mapping[str, str]) -> Finding:
    """Return the finding that the all-reduce failed; `errors` has the reason of each host that failed, by the host's
    name.
    """
    names: dict[str, list[str]] = {}
    for name, error in errors.items():
        names.setdefault(error, []).append(name)
    return problem("all-reduce", "; ".join(f"{some(who)}: {error}" for error, who in names.items()), _REDUCE_HINT)
