"""Compare the measured network links between the nodes of a run, and decide which node makes one slow."""

import statistics
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from launcher.spec.amounts import rate

MEASURE_S = 3.0  # for what takes tenths of one
_LEAST = 0.1  # of what the usual node does at its best

Pair = tuple[int, int]  # the lower number first


@dataclass(frozen=True, slots=True)
class MeasuredLink:
    """The measured link between two nodes, or in `problem` the reason why it could not be measured."""

    pair: Pair  # the lower node number first
    bytes_per_s: float = 0.0  # of the slower direction
    round_trip_s: float = 0.0
    problem: str = ""

    def __str__(self) -> str:
        return self.problem or rate(self.bytes_per_s)


@dataclass(frozen=True, slots=True)
class SlowLinks:
    """The result of comparing links.

    `wanted` is the rate that each should reach; `unfit` are nodes none of whose links reaches it; `slow` are further
    slow links, where neither end is known to be the cause.
    """

    wanted: float  # bytes per second
    unfit: tuple[int, ...]  # node numbers
    slow: tuple[MeasuredLink, ...]


def ring(nodes: Sequence[int]) -> list[Pair]:
    """Return the pairs of nodes to measure: each node with the next one, and the last with the first."""
    pairs = [_pair(one, nodes[(place + 1) % len(nodes)]) for place, one in enumerate(nodes)]
    return pairs if len(nodes) > 2 else pairs[: len(nodes) - 1]


def turns(pairs: Iterable[Pair]) -> list[list[Pair]]:
    """Group the pairs into lists of pairs that can be measured at the same time: no node is in two pairs of a list."""
    found: list[list[Pair]] = []
    busy: list[set[int]] = []
    for pair in pairs:
        place = next((place for place, nodes in enumerate(busy) if nodes.isdisjoint(pair)), len(busy))
        if place == len(busy):
            found.append([])
            busy.append(set())
        found[place].append(pair)
        busy[place].update(pair)
    return found


def find_slow(links: Collection[MeasuredLink], floor: float | None) -> SlowLinks:
    """Return the nodes to exclude (those all of whose links in `links` are slow), and the slow links between other
    nodes. A link whose measurement failed is slow.

    `floor` is the least rate in bytes per second. Without it, each link must reach a tenth of the median of the nodes'
    best rates; with fewer than three nodes any rate will do. A healthy node is named too if it was measured only with
    slow ones, so `second_look` gives the pairs to measure again. If all links are slow, no node is named.
    """
    of = _by_node(links)
    bests = [max(link.bytes_per_s for link in its) for its in of.values()]
    wanted = floor if floor is not None else _LEAST * statistics.median_high(bests) if len(bests) > 2 else 0.0
    slow = {link for link in links if link.problem or link.bytes_per_s < wanted}
    told = [] if len(slow) == len(links) else [node for node, its in of.items() if slow.issuperset(its)]
    left = [link for link in slow if not set(link.pair).intersection(told)]
    return SlowLinks(wanted, tuple(sorted(told)), tuple(sorted(left, key=lambda link: link.pair)))


def second_look(links: Collection[MeasuredLink], found: SlowLinks) -> list[Pair]:
    """Return the pairs to measure again before a node is excluded: each node of `found.unfit`, none of whose links is
    fast enough, with one node that has a fast link and is not unfit, and the pair of each link in `found.slow`.
    """
    good = sorted({node for link in links for node in link.pair if link not in found.slow}.difference(found.unfit))
    witnessed = [_pair(node, good[place % len(good)]) for place, node in enumerate(found.unfit)]
    return [*dict.fromkeys([*witnessed, *(link.pair for link in found.slow)])]


def better(one: MeasuredLink | None, other: MeasuredLink) -> MeasuredLink:
    """Return the faster of two measurements of a pair, because a node may have been busy during the slower one; a
    failed one, or None, counts as slower.
    """
    return other if one is None or one.problem or other.bytes_per_s >= one.bytes_per_s else one


def evidence(node: int, links: Iterable[MeasuredLink], wanted: str) -> str:
    """Return a line on why `node` was found unfit: for each of its links in `links`, all of which are too slow, the
    node at the other end and the measured rate; then `wanted`, a text that names the rate that they should have.
    """
    its = [link for link in links if node in link.pair]
    return f"links: {', '.join(f'to node {_peer(link, node)} {link}' for link in its)}; {wanted}"


def summary(links: Collection[MeasuredLink]) -> str:
    """Return one line for an event: how many of the links were measured, their median and lowest rate, and their
    longest round trip.
    """
    measured = sorted((link for link in links if not link.problem), key=lambda link: link.bytes_per_s)
    some = f"{len(measured)} of {len(links)} link{'s' if len(links) > 1 else ''} between nodes measured"
    if not measured:
        return some
    least, trip = measured[0], max(link.round_trip_s for link in measured)
    usual = rate(statistics.median(link.bytes_per_s for link in measured))
    where = f", {rate(least.bytes_per_s)} at the least (node {least.pair[0]} and {least.pair[1]})"
    return f"{some}: {usual}{where if len(measured) > 1 else ''}, {trip * 1000:.2g} ms there and back at most"


def _pair(one: int, other: int) -> Pair:
    """Return the pair of two nodes, with the lower number first."""
    return (one, other) if one < other else (other, one)


def _peer(link: MeasuredLink, node: int) -> int:
    """Return the node at the other end of the link."""
    return link.pair[1] if link.pair[0] == node else link.pair[0]


def _by_node(links: Iterable[MeasuredLink]) -> Mapping[int, list[MeasuredLink]]:
    """Return the links of each node, by the node's number; each link is listed for both of its nodes."""
    found: dict[int, list[MeasuredLink]] = {}
    for link in links:
        for node in link.pair:
            found.setdefault(node, []).append(link)
    return found
