"""Choose which links between a pool's hosts are measured at the same time, and turn the measurements into findings.
Pure functions. A way is the measured link from one host to another.
"""

import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from launcher.health.findings import Finding, Level, problem, some, warning
from launcher.health.links import turns
from launcher.spec.amounts import rate

_SLOW = 0.5  # of what is usual
_MOST_NAMED = 4  # single slow ways
_PORTS_HINT = (
    "a run's hosts need each other's TCP ports from 20000 on, both ways: open them between the hosts; "
    "`address:` of a host names the one on the network they share"
)
_SLOW_HINT = "a run is as fast as its slowest way: look at the card, the cable and who else uses them"


@dataclass(frozen=True, slots=True)
class Way:
    """The measured link from the host `start` to the host `end`; if `error` is set, it could not be measured. `at` is
    the address that was called.
    """

    start: str
    end: str
    round_trip_s: float = 0.0
    bytes_per_s: float = 0.0
    error: str = ""
    at: str = ""  # the address that was called; after an error with the port


def rounds(count: int) -> list[list[tuple[int, int]]]:
    """Return rounds of pairs of the numbers below `count`; no number is in two pairs of a round.

    Neighbours in a ring come first, then pairs at the distances 2, 4, 8, ..., so that each number has several partners
    in about log2(count) rounds.
    """
    ring = [(one, (one + 1) % count) for one in range(count if count > 2 else count - 1)]
    found = turns(ring)
    apart = 2
    while apart < count:
        pairs = [(one, one + apart) for one in range(count - apart) if not one & apart]
        found.append([pair for pair in pairs if pair not in ring and pair[::-1] not in ring])
        apart *= 2
    return [pairs for pairs in found if pairs]


def slow(ways: Sequence[Way]) -> list[Way]:
    """Return the links with less than half of the usual rate (the median of the hosts' best rates), slowest first."""
    usual = _usual(ways)
    return sorted((way for way in ways if way.bytes_per_s < _SLOW * usual), key=lambda way: way.bytes_per_s)


def findings(hosts: Sequence[str], ways: Sequence[Way]) -> Iterable[Finding]:
    """Yield findings on whether all hosts reach each other, at which rates, and which links are slow."""
    measured = [way for way in ways if not way.error]
    if measured:
        trips = [way.round_trip_s for way in measured]
        usual = f"{rate(statistics.median(way.bytes_per_s for way in measured))}, {_ms(statistics.median(trips))}"
        text = f"{len(measured)} of {len(ways)} ways measured, usually {usual} there and back"
        yield Finding(Level.OK, "network", text, rows=(_HEAD, *(_row(host, measured) for host in hosts)))
    yield from _unreachable(hosts, [way for way in ways if way.error])
    yield from _slow(measured)


_HEAD = ("HOST", "SENDS", "RECEIVES", "ROUND TRIP", "WITH")


def _row(host: str, ways: Sequence[Way]) -> tuple[str, ...]:
    """Return the table row of a host, as text: its name, the medians of its rates of sending and receiving and of the
    round trip, over all ways from or to it, and the number of its partners. "-" is for what was not measured.
    """
    out, back = [way for way in ways if way.start == host], [way for way in ways if way.end == host]
    partners = {way.end for way in out} | {way.start for way in back}
    if not partners:
        return (host, "-", "-", "-", "nobody")
    speeds = (rate(statistics.median(way.bytes_per_s for way in ways)) if ways else "-" for ways in (out, back))
    return (host, *speeds, _ms(statistics.median(way.round_trip_s for way in (*out, *back))), str(len(partners)))


def _unreachable(hosts: Sequence[str], ways: Iterable[Way]) -> Iterable[Finding]:
    """Yield a problem for each host that others cannot reach and each reason for that, with the names of these others
    in the order of `hosts`. `ways` are the links that could not be measured, each with its error.
    """
    starts: dict[tuple[str, str], list[str]] = {}
    for way in ways:
        why = f"{way.at}: {way.error}" if way.at else way.error
        starts.setdefault((way.end, why), []).append(way.start)
    for (end, why), names in starts.items():
        text = f"{end} cannot be reached from {some(sorted(names, key=hosts.index))}: {why}"
        yield problem("network", text, _PORTS_HINT)


def _slow(ways: Sequence[Way]) -> Iterable[Finding]:
    """Yield warnings, first for hosts that are slow with all others, then for single links between other hosts.

    Slow is less than half of the usual rate, the median of the hosts' best rates.
    """
    usual = _usual(ways)
    senders, receivers = (_slow_with_all(side, usual) for side in _sides(ways))
    for host, speed in sorted((senders | receivers).items(), key=lambda pair: pair[1]):
        does = "sends" if host not in receivers else "receives" if host not in senders else "sends and receives"
        text = f"{host} {does} {rate(speed)} at best, {rate(usual)} is usual"
        yield warning("network", text, _SLOW_HINT)
    left = [way for way in slow(ways) if way.start not in senders and way.end not in receivers]
    for way in left[:_MOST_NAMED]:
        text = f"{way.start} sends to {way.end} {rate(way.bytes_per_s)}, {rate(usual)} is usual"
        yield warning("network", text, _SLOW_HINT)


def _usual(ways: Sequence[Way]) -> float:
    """Return the usual rate in bytes per second: the median of the hosts' best rates, as a host's other links may be
    slow because of the hosts at their other ends. Return 0 if there are no rates.
    """
    bests = [max(speeds) for side in _sides(ways) for speeds in side.values()]
    return statistics.median_high(bests) if bests else 0.0


def _sides(ways: Sequence[Way]) -> tuple[dict[str, list[float]], dict[str, list[float]]]:
    """Return ({host: the rates at which it sent}, {host: the rates at which it received}), in bytes per second: one
    rate for each measured link.
    """
    sent: dict[str, list[float]] = {}
    received: dict[str, list[float]] = {}
    for way in ways:
        sent.setdefault(way.start, []).append(way.bytes_per_s)
        received.setdefault(way.end, []).append(way.bytes_per_s)
    return sent, received


def _slow_with_all(side: Mapping[str, Sequence[float]], usual: float) -> dict[str, float]:
    """Return the hosts whose rates are less than half of the `usual` rate with all partners in one direction, with
    their best rates; `side` has the rates of each host in this direction. A host with a single partner is left out,
    because the other end may be the cause.
    """
    bests = {host: max(speeds) for host, speeds in side.items() if len(speeds) > 1}
    return {host: best for host, best in bests.items() if best < _SLOW * usual}


def _ms(seconds: float) -> str:
    """Return a time in milliseconds as text."""
    return f"{seconds * 1000:.2g} ms"
