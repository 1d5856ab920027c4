"""Find the rank that enters collectives last, for any script with a process group, while it trains."""

from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby
from statistics import median
from typing import NamedTuple

from launcher.coordinator.attempt import Attempt
from launcher.run.hangs import GroupTimes, LastRank
from launcher.wire import messages

EVERY_S = 60.0  # a rank's answer stops its Python for 10 to 100 ms: less than two thousandths of the time
FIRST_S = 20.0  # after the ranks were started
ANSWER_S = 5.0
_MOST_TIMES = 60_000  # of all ranks, that are compared: some tenths of a second
_LEAST_COLLECTIVES = 10
_LEAST_SHARE = 0.05  # of the time, that is worth a line
_LEAST_S, _LEAST_APART_S = 0.001, 0.01  # between nodes, besides what is not known of their clocks
_LEAST_LONG_WAITS = 3  # one pause, as for a save, makes no slow rank
_CLEARLY = 2.0  # times as long as for any other rank: else ranks are last by turns

Times = Mapping[tuple[int, int], Sequence[GroupTimes]]  # by rank and its node


class NodeClock(NamedTuple):
    """The difference between a node's clock and the coordinator's, measured by one request and its answer."""

    ahead_s: float  # by how much the node's clock is ahead; negative: behind
    error_s: float  # by how much `ahead_s` may be wrong, in either direction


class Stragglers:
    """The part of the coordinator that asks all ranks every minute when they entered their newest collectives, and
    records in the attempt's state which rank was last.
    """

    def __init__(self, attempt: Attempt) -> None:
        self._attempt = attempt
        self._generation = self._number = 0
        self._asked_at = self._ask_at = self._until = 0.0
        self._asks = False  # a question is under way
        self._times = dict[tuple[int, int], Sequence[GroupTimes]]()
        self._clocks = dict[int, NodeClock]()

    def receive(self, message: messages.Entered) -> None:
        """Record when one rank entered its newest collectives, by its node's clock.

        The answer also gives an estimate of that clock's offset, which replaces the one so far if it is more exact.
        """
        if self._asks and message.number == self._number:
            rank = self._attempt.current.rank_of(message.node, message.rank)
            if rank is not None:
                self._times[rank.number, rank.node] = message.groups
                clock = clock_of(message, self._asked_at, self._attempt.mono)
                known = self._clocks.get(rank.node)
                if known is None or clock.error_s < known.error_s:
                    self._clocks[rank.node] = clock

    def check(self) -> None:
        """Ask all ranks every `EVERY_S` seconds, first `FIRST_S` seconds after their start, and evaluate their answers
        once all have come or `ANSWER_S` seconds have passed. Do nothing if ranks are not watched for hangs. Call it on
        every event while all ranks run.
        """
        attempt, mono = self._attempt, self._attempt.mono
        if attempt.rules.hang_after_s is None:
            return  # nothing is to look at the ranks
        if attempt.current.number != self._generation:
            self._generation, self._asks, self._ask_at = attempt.current.number, False, mono + FIRST_S
            attempt.standing.last_rank = None
        live = attempt.current.live
        if self._asks and (len(self._times) >= live or mono >= self._until):
            self._asks = False
            attempt.standing.last_rank = last_rank(self._times, self._clocks)
        elif mono >= self._ask_at and live > 1:
            self._asked_at, self._ask_at, self._until = mono, mono + EVERY_S, mono + ANSWER_S
            self._asks, self._times, self._clocks = True, {}, {}
            self._number += 1
            for index in attempt.current.members:
                if attempt.nodes[index].is_reachable:
                    attempt.ledger.send(index, messages.Look(attempt.current.number, self._number, times=True))


def clock_of(message: messages.Entered, sent_at: float, received_at: float) -> NodeClock:
    """Return by how many seconds a node's clock is ahead of the coordinator's, and how far wrong that may be, as NTP
    estimates them.

    The coordinator sent a question at `sent_at` and received the answer, `message`, at `received_at`, both by its own
    clock; the answer says when, by the node's clock, the question came and the answer left.
    """
    ahead_s = ((message.asked_at - sent_at) + (message.answered_at - received_at)) / 2
    travelled_s = (received_at - sent_at) - (message.answered_at - message.asked_at)
    return NodeClock(ahead_s, max(0.0, travelled_s / 2))


def last_rank(times: Times, clocks: Mapping[int, NodeClock]) -> LastRank | None:
    """Return the rank that makes the others of a process group wait most, or None if no rank clearly does. If several
    groups have such a rank, return the one that costs its group the largest share of the time.

    The others have to wait for it at least twice as long in all as for any other rank, 5 % of the time, in three or
    more collectives of at least ten, and each time longer than the nodes' clocks can be wrong. `times` has, for each
    pair of a rank and its node, when the rank entered its newest collectives by the node's clock, and `clocks` the
    clock of each node.
    """
    members = dict[tuple[str, tuple[int, ...]], dict[tuple[int, int], GroupTimes]]()
    for rank, groups in times.items():
        for group in groups:
            members.setdefault((group.name, group.ranks), {})[rank] = group
    found = [
        last
        for (_, numbers), group in members.items()
        if len(group) > 1 and sorted(rank for rank, _ in group) == list(numbers)
        if (last := _last_of(group, clocks)) is not None
    ]
    return max(found, key=lambda one: one.share, default=None)


def _last_of(group: Mapping[tuple[int, int], GroupTimes], clocks: Mapping[int, NodeClock]) -> LastRank | None:
    """Return the rank that makes its process group wait most, at least twice as long in all as any other rank does. A
    wait lasts from when half of the other ranks have entered a collective until the last rank enters.

    Return None if there is no such rank, if fewer than three of its waits are long, if they take less than 5 % of the
    time or are too short for the precision of the clocks, or if the ranks' records share fewer than ten collectives.
    The keys of `group` are (rank, node), those of `clocks` are nodes.
    """
    end = min(one.first + len(one.entered_us) for one in group.values())
    begin = max(*(one.first for one in group.values()), end - _MOST_TIMES // len(group))
    if end - begin < _LEAST_COLLECTIVES:
        return None
    waits, usual = list[tuple[tuple[int, int], float, float]](), list[float]()  # the last rank, from when, till when
    since_us = {(rank, node): one.since_us - 1e6 * clocks[node].ahead_s for (rank, node), one in group.items()}
    for seq in range(begin, end):
        entered = sorted((since_us[rank] + one.entered_us[seq - one.first], rank) for rank, one in group.items())
        till, last = entered[-1]
        usual.append(median(at for at, _ in entered[:-1]))
        waits.append((last, usual[-1], till))
    by_rank = {
        rank: [(since, till) for _, since, till in own] for rank, own in groupby(sorted(waits), key=lambda one: one[0])
    }
    lost_us = {rank: _covered(own) for rank, own in by_rank.items()}
    rank, *others = sorted(lost_us, key=lambda one: -lost_us[one])
    share = lost_us[rank] / max(1.0, max(usual) - min(usual))
    waits_us = [till - since for since, till in by_rank[rank]]
    by_us = _typical_long_wait(waits_us)
    nodes = {node for _, node in group}
    least_s = _LEAST_S if len(nodes) == 1 else max(_LEAST_APART_S, 2 * max(clocks[node].error_s for node in nodes))
    by_turns = any(_CLEARLY * lost_us[one] > lost_us[rank] for one in others)
    again = sum(wait >= by_us for wait in waits_us) >= _LEAST_LONG_WAITS
    if share < _LEAST_SHARE or by_us < 1e6 * least_s or by_turns or not again:
        return None
    number, node = rank
    return LastRank(number, node, len(by_rank[rank]), end - begin, round(by_us / 1e6, 5), round(min(1.0, share), 3))


def _covered(spans: Iterable[tuple[float, float]]) -> float:
    """Return the total time that `spans` cover; overlapping spans count once."""
    covered, reached = 0.0, float("-inf")
    for since, till in sorted(spans):
        covered += max(0.0, till - max(since, reached))
        reached = max(reached, till)
    return covered


def _typical_long_wait(waits: Sequence[float]) -> float:
    """Return the typical wait among the long ones: waits at least as long make up half of the total.

    A median would be near 0, because perhaps only one of a step's many collectives has a long wait.
    """
    rest = sum(waits) / 2
    for wait in sorted(waits, reverse=True):
        rest -= wait
        if rest <= 0:
            return wait
    return 0.0
