"""Measuring the ways between hosts, round by round: several at the same time, nobody in two at once."""

import secrets
from collections.abc import Callable, Sequence

from launcher.agent.messages import WIRE_VERSION
from launcher.doctor.findings import Finding, problem
from launcher.doctor.network.helper import Helper, Member
from launcher.doctor.network.ways import Way, rounds, slow
from launcher.doctor.network.ways_there import Measured, OpenDoors
from launcher.errors import LaunchError
from launcher.hostlink.parallel import for_all

_OPEN_S, _CALL_S = 15.0, 30.0
_MOST_AGAIN = 12
_ADDRESS_HINT = "`address:` of the host names one that it has, on the network that the hosts share"
_LOST_HINT = "look whether it is well; the others were measured without it"


class Measurer(Helper):
    """The program on one host; with a trouble it takes no part any more."""

    def __init__(self, member: Member) -> None:
        super().__init__(member, "ways", "-I")
        self.ports: tuple[int, ...] = ()
        self.trouble: Finding | None = None

    def open(self, token: str) -> None:
        address = self.member.address
        words = {"do": "open", "address": address, "token": token, "version": WIRE_VERSION}
        try:
            opened = self.ask(words, OpenDoors, _OPEN_S)
        except LaunchError as error:
            self._lost(error)
            return
        self.ports = opened.ports
        if opened.error:
            text = f"{self.name} cannot listen on {address or 'its address'}: {opened.error}"
            self.trouble = problem("network", text, _ADDRESS_HINT)

    def call(self, other: "Measurer") -> Way | None:
        """The way to it; None where one of them takes no part."""
        if self.trouble or other.trouble:
            return None
        address = other.member.address
        try:
            found = self.ask({"do": "call", "address": address, "ports": other.ports}, Measured, _CALL_S)
        except LaunchError as error:
            self._lost(error)
            return None
        kind = " (as MASTER_PORT has)" if found.port == other.ports[0] else ""
        why = found.error and f"{address}, port {found.port}{kind}: {found.error}"
        return Way(self.name, other.name, found.round_trip_s, found.bytes_per_s, why)

    def _lost(self, error: LaunchError) -> None:
        line = str(error.lines[0])
        text = line if line.startswith(self.name) else f"{self.name}: {line}"
        self.trouble = problem("network", text, _LOST_HINT)


def measured(helpers: Sequence[Measurer], tell: Callable[[str], None]) -> tuple[list[Way], list[Finding]]:
    """The ways, both directions of a pair one after the other; and who cannot take part, and why."""
    token = secrets.token_hex(32)
    for_all({one.name: one for one in helpers}, lambda _, one: one.open(token))
    present = [one for one in helpers if not one.trouble]
    plan = rounds(len(present))
    ways: list[Way] = []
    for number, numbers in enumerate(plan, 1):
        tell(f"ways between hosts: round {number} of {len(plan)}")
        pairs = {present[one].name: (present[one], present[other]) for one, other in numbers}
        found = for_all(pairs, lambda _, pair: [pair[0].call(pair[1]), pair[1].call(pair[0])])
        ways += [way for both in found.values() if isinstance(both, list) for way in both if way]
    return _again(ways, {one.name: one for one in helpers}, tell), [one.trouble for one in helpers if one.trouble]


def _again(ways: list[Way], helpers: dict[str, Measurer], tell: Callable[[str], None]) -> list[Way]:
    """What was slow while others measured too may be fast alone."""
    better: dict[Way, Way] = {}
    for way in slow([way for way in ways if not way.error])[:_MOST_AGAIN]:
        tell(f"again, alone: {way.start} to {way.end}")
        alone = helpers[way.start].call(helpers[way.end])
        if alone and alone.bytes_per_s > way.bytes_per_s:
            better[way] = alone
    return [better.get(way, way) for way in ways]
