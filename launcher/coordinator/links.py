"""Measure the links between nodes before ranks start and after a failure, for `recovery.health`. The pairs of nodes to
measure are divided into turns: in a turn each node is in one pair at most, so that all pairs of a turn are measured at
once. An agent is the launcher's process on a node.

One node of each pair in a turn gets CheckLink and answers LinkSeen; then the next turn follows. A node that looks slow
is measured a second time before it is excluded, as after a failed device check. Then ranks start.

The pairs form a ring over all usable nodes, spares included: a third node shows which of two others is slow.
"""

from collections import deque
from collections.abc import Callable, Sequence
from math import inf

from launcher.coordinator.attempt import Attempt
from launcher.coordinator.gathering import Gathering
from launcher.coordinator.nodes import KnownNode
from launcher.coordinator.watching import Watch, fresh_s
from launcher.health.links import (
    MEASURE_S,
    MeasuredLink,
    Pair,
    SlowLinks,
    better,
    evidence,
    find_slow,
    ring,
    second_look,
    summary,
    turns,
)
from launcher.spec.amounts import rate
from launcher.wire.messages import CheckLink, LinkSeen, ReplicaAddress

_ANSWER_S = 2.0  # for the answer, beyond the time that a node has to measure
_MOST_NAMED = 4


class Links:
    """The measurements of the links between nodes; call `are_known` before each set of ranks that is started anew."""

    def __init__(self, attempt: Attempt, watch: Watch) -> None:
        self._attempt = attempt
        self._watch = watch
        self._number = 0  # of the newest request
        self._forget(None)

    def _forget(self, gathering: Gathering | None) -> None:
        """Drop all measurements. A node's links are measured once in each wait for enough nodes to start ranks:
        `gathering` is the wait for which later measurements count (None: no wait has begun yet).
        """
        self._of = gathering  # what was measured before a failure does not count after it
        self._found: dict[Pair, MeasuredLink] = {}
        self._looked_at: dict[int, object] = {}  # by node: its agent, when a link of it was last measured
        self._looked_twice = False
        self._turns: deque[list[Pair]] = deque()
        self._asked: dict[int, tuple[Pair, object]] = {}  # by number, of which agents; and not answered yet
        self._until = inf
        self._began_at = self._attempt.mono
        self._told = False

    def deadline(self) -> float:
        """Return the monotonic time until which the current turn waits for missing answers, or infinity if none is
        awaited.
        """
        return self._until

    def receive(self, seen: LinkSeen) -> None:
        """Record a measured link; ignore an answer that is not awaited or whose agents were replaced meanwhile."""
        pair, agents = self._asked.get(seen.number, ((-1, -1), ()))
        if seen.node != pair[0]:
            return
        del self._asked[seen.number]
        if agents == self._agents(pair):  # else what was seen is of one that is gone
            self._take(MeasuredLink(pair, seen.bytes_per_s, seen.round_trip_s, seen.problem))

    def are_known(self, choose: Callable[[], Sequence[int]]) -> bool:
        """Return whether ranks may start, as far as links matter, on the nodes that `choose` returns.

        If the links of one of these nodes' agents were not measured yet, start that and return False, as long as it
        lasts. Then exclude nodes whose links are too slow, and return False if there are any: the caller calls again
        and chooses others. This is called on every event, so `choose` is called only if links are measured at all
        (`recovery.health`) and no measurement is under way.
        """
        attempt = self._attempt
        if not attempt.rules.health or len(attempt.plan.nodes) < 2:
            return True
        if self._of is not attempt.gathering:
            self._forget(attempt.gathering)
        if self._is_under_way():
            return False
        chosen = choose()
        nodes = [*chosen, *sorted(attempt.nodes.usable.difference(chosen))]
        fresh = {index for index in nodes if self._looked_at.get(index) != self._agent(index)}
        if len(chosen) > 1 and fresh.intersection(chosen):
            self._looked_twice = False
            self._measure([pair for pair in ring(nodes) if fresh.intersection(pair)])
            return False
        links = [link for pair, link in self._found.items() if attempt.nodes.usable.issuperset(pair)]
        found = find_slow(links, attempt.rules.link_floor_bytes)
        if not self._looked_twice and (again := second_look(links, found)):
            self._looked_twice = True
            self._measure(again)
            return False
        return self._conclude(links, found)

    # -- measuring

    def _is_under_way(self) -> bool:
        """Return True while links are being measured, and False once no turn is left.

        Begin the next turn if all pairs of the last one have answered or are late, which they are at `deadline`. A late
        pair is recorded as a link with a problem, unless its first node's heartbeats are late too.
        """
        attempt = self._attempt
        if attempt.mono < self._until and self._is_any_awaited():
            return True
        for pair in [pair for pair, agents in self._asked.values() if self._is_awaited(pair, agents)]:
            node = attempt.nodes[pair[0]]
            if node.heard_at >= attempt.mono - fresh_s(
                attempt.plan
            ):  # else its lease decides: its answer may still be on the way
                self._take(MeasuredLink(pair, problem=f"no answer within {MEASURE_S + _ANSWER_S:g} s"))
        self._asked.clear()
        self._until = inf
        if not self._turns:
            return False
        self._ask(self._turns.popleft())
        return True

    def _is_any_awaited(self) -> bool:
        """Return whether the answer of any pair of the present turn is still awaited.

        In the dict of pairs that were asked, those that are not awaited any more go to the end, so that the next call
        finds an awaited one first.
        """
        for _ in range(len(self._asked)):
            number, (pair, agents) = next(iter(self._asked.items()))
            if self._is_awaited(pair, agents):
                return True
            del self._asked[number]
            self._asked[number] = pair, agents
        return False

    def _is_awaited(self, pair: Pair, agents: object) -> bool:
        """Return whether the measurement of the link between the nodes of `pair` still matters: both nodes can be used
        for ranks, and their agents are still `agents`, the two processes that were asked to measure it.
        """
        return agents == self._agents(pair) and self._attempt.nodes.usable.issuperset(pair)

    def _measure(self, pairs: list[Pair]) -> None:
        """Divide `pairs` into turns, in which each node has one partner at most, and start the first turn without
        waiting for answers.
        """
        self._told = False
        self._turns.extend(turns(pairs))
        self._ask(self._turns.popleft())

    def _ask(self, pairs: list[Pair]) -> None:
        """Begin a turn: send one node of each pair the order `CheckLink`, to measure its link to the other node, and
        set the time until which answers are awaited.
        """
        attempt, nodes = self._attempt, self._attempt.nodes
        self._until = attempt.mono + MEASURE_S + _ANSWER_S
        attempt.standing.message = "measuring the links between nodes"
        for one, other in pairs:
            self._number += 1
            self._asked[self._number] = (one, other), self._agents((one, other))
            peer = ReplicaAddress(other, nodes[other].address, nodes[other].link_port)
            attempt.ledger.send(one, CheckLink(self._number, peer))

    def _take(self, link: MeasuredLink) -> None:
        """Keep the faster one of this and any earlier measurement of the pair. Record for both nodes which agent was
        measured: a node whose agent is another one later is measured anew.
        """
        self._found[link.pair] = better(self._found.get(link.pair), link)
        for index in link.pair:
            self._looked_at[index] = self._agent(index)

    def _agent(self, index: int) -> object:
        """Return the identity of the node's newest agent process, or None if it has none yet; if it differs from an
        earlier one, the agent was replaced.
        """
        return self._attempt.nodes[index].process

    def _agents(self, pair: Pair) -> object:
        """Return the process ids of the agents on both nodes of the pair: a measurement counts only for the agents that
        made it.
        """
        return tuple(map(self._agent, pair))

    # -- what comes of it

    def _conclude(self, links: list[MeasuredLink], found: SlowLinks) -> bool:
        """Record the measured links as events, and exclude the nodes that `found` shows to be slow.

        With `recovery.link_floor` all of them are excluded, else only those without which enough nodes remain for the
        plan. Return True if ranks can start now, and False if a node was excluded. A second call in the same wait for
        nodes, or one without links, does nothing and returns True.
        """
        if self._told or not links:
            return True
        self._told = True
        attempt, floor = self._attempt, self._attempt.rules.link_floor_bytes
        attempt.ledger.record("links_checked", f"{summary(links)}; {attempt.mono - self._began_at:.2g} s")
        where = " (recovery.link_floor)" if floor is not None else ", a tenth of what is usual here"
        wanted = f"{rate(found.wanted)} wanted{where}" if found.wanted else "nothing came of it"
        for link in found.slow[:_MOST_NAMED]:
            ends = " and ".join(str(attempt.nodes[index]) for index in link.pair)
            text = f"the link between {ends}: {link}; {wanted}; which of the two is slow is unknown, so both are used"
            attempt.ledger.record("link_slow", text, evidence=str(link))
        left_out = False
        for node in map(attempt.nodes.__getitem__, found.unfit):
            seen = evidence(node.index, links, wanted)
            if floor is not None or self._can_do_without(node):
                self._watch.leave_out(node, seen)
                left_out = True
            else:
                text = f"{node} is used all the same, as no other can have its place: {seen}"
                attempt.ledger.record("link_slow", text, node=node.index, evidence=seen)
        return not left_out

    def _can_do_without(self, node: KnownNode) -> bool:
        """Return whether this slow node can be excluded: it is not the first node, and without it the plan's smallest
        number of nodes and a quorum of the voters remain. Nodes that may still come count as there.
        """
        nodes, plan = self._attempt.nodes, self._attempt.plan
        others = (nodes.usable | nodes.hopeful) - {node.index}
        enough = len(others) >= plan.nodes_min and nodes.quorum_shortfall(others, nodes.only_voting) is None
        return node.index != plan.nodes[0].index and enough
