"""Measuring the ways between the hosts of a pool, round by round, by a program on each that leaves when we hang up."""

import secrets
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

import msgspec

from launcher.agent.messages import WIRE_VERSION
from launcher.clusters.ssh.facts import Surveyed
from launcher.doctor.findings import Finding, problem
from launcher.doctor.network import ways_there as doctor_there
from launcher.doctor.network.ways import Way, rounds, slow
from launcher.errors import LaunchError, Unreachable
from launcher.hostlink.connect import Line
from launcher.hostlink.parallel import for_all

_OPEN_S, _CALL_S = 15.0, 30.0
_HANG_UP_S = 5.0
_MOST_AGAIN = 12
_ADDRESS_HINT = "`address:` of the host names one that it has, on the network that the hosts share"
_LOST_HINT = "look whether it is well; the others were measured without it"


class _Opened(msgspec.Struct, frozen=True):
    ports: tuple[int, ...] = ()
    error: str = ""


class _Called(msgspec.Struct, frozen=True):
    round_trip_s: float = 0.0
    bytes_per_s: float = 0.0
    error: str = ""
    port: int = 0


class Helper:
    """The program on one host, asked by one thread at a time."""

    def __init__(self, line: Line, found: Surveyed) -> None:
        self.name, self.found = found.host.name, found
        self.ports: tuple[int, ...] = ()
        self.trouble: Finding | None = None  # why it takes no part
        text = Path(doctor_there.__file__).read_text(encoding="utf-8")
        self._running = line.start([found.facts.python, "-I", "-c", text])

    def open(self, token: str) -> None:
        words = {"do": "open", "address": self.found.address, "token": token, "version": WIRE_VERSION}
        answer = msgspec.json.decode(self._ask(words, _OPEN_S), type=_Opened)
        self.ports = answer.ports
        if answer.error:
            text = f"{self.name} cannot listen on {self.found.address or 'its address'}: {answer.error}"
            self.trouble = problem("network", text, _ADDRESS_HINT)

    def call(self, other: "Helper") -> Way:
        words = {"do": "call", "address": other.found.address, "ports": other.ports}
        answer = msgspec.json.decode(self._ask(words, _CALL_S), type=_Called)
        kind = " (as MASTER_PORT has)" if answer.port == other.ports[0] else ""
        error = answer.error and f"{other.found.address}, port {answer.port}{kind}: {answer.error}"
        return Way(self.name, other.name, answer.round_trip_s, answer.bytes_per_s, error)

    def lost(self, error: LaunchError) -> None:
        """It cannot be asked any more."""
        self.trouble = problem("network", error.lines[0], _LOST_HINT)

    def leave(self) -> None:
        """Without a word more it ends there."""
        try:
            self._running.finish(_HANG_UP_S)
        except Unreachable:
            self._running.close()  # it is not seen to end; its stdin has ended

    def _ask(self, words: Mapping[str, object], limit_s: float) -> bytes:
        self._running.write(msgspec.json.encode(words) + b"\n", limit_s)
        line = self._running.readline(limit_s)
        if not line.endswith(b"\n"):
            said = self._running.finish(_HANG_UP_S).err.decode(errors="replace").strip().splitlines()
            raise Unreachable(f"{self.name}: {said[-1] if said else 'the connection broke'}")
        return line


def measured(
    helpers: Sequence[Helper], lines: Mapping[str, Line], tell: Callable[[str], None]
) -> tuple[list[Way], list[Finding]]:
    """The ways between hosts, both directions of a pair one after the other; and who cannot take part, and why."""
    token = secrets.token_hex(32)
    by_name = {helper.name: helper for helper in helpers}
    for name, result in for_all(
        {name: lines[name] for name in by_name}, lambda name, _: by_name[name].open(token)
    ).items():
        if isinstance(result, LaunchError):
            by_name[name].lost(result)
    present = [helper for helper in helpers if not helper.trouble]
    plan = rounds(len(present))
    ways: list[Way] = []
    for number, pairs in enumerate(plan, 1):
        tell(f"ways between hosts: round {number} of {len(plan)}")
        partners = {present[one].name: present[other] for one, other in pairs}
        starts = [name for name, other in partners.items() if not by_name[name].trouble and not other.trouble]

        def both_ways(name: str, _: Line, partners: Mapping[str, Helper] = partners) -> list[Way]:
            return list(_both_ways(by_name[name], partners[name]))

        results = for_all({name: lines[name] for name in starts}, both_ways)
        ways += [way for result in results.values() if not isinstance(result, LaunchError) for way in result]
    return _again(ways, by_name, tell), [helper.trouble for helper in helpers if helper.trouble]


def _again(ways: list[Way], helpers: Mapping[str, Helper], tell: Callable[[str], None]) -> list[Way]:
    """What was slow while others measured too may be fast alone."""
    better: dict[Way, Way] = {}
    for way in slow([way for way in ways if not way.error])[:_MOST_AGAIN]:
        tell(f"again, alone: {way.start} to {way.end}")
        one, other = helpers[way.start], helpers[way.end]
        if one.trouble or other.trouble:
            continue
        try:
            alone = one.call(other)
        except LaunchError as error:
            one.lost(error)
            continue
        if alone.bytes_per_s > way.bytes_per_s:
            better[way] = alone
    return [better.get(way, way) for way in ways]


def _both_ways(one: Helper, other: Helper) -> Iterable[Way]:
    for start, end in ((one, other), (other, one)):
        try:
            yield start.call(end)
        except LaunchError as error:
            start.lost(error)
            return
