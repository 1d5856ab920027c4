"""Nodes that somebody wants to be without: their ranks move to others, in place where that can be."""

from launcher.agent.coordination.attempt import Attempt, AttemptPhase
from launcher.agent.coordination.closing import CLOSE_S, Closer
from launcher.agent.coordination.in_place.going_on import HotOpener
from launcher.agent.coordination.nodes import KnownNode
from launcher.agent.coordination.verdict import Verdict
from launcher.agent.messages import Stop
from launcher.words import Cause


class Drainer:
    """Has the ranks of nodes moved that somebody wants to be without, once others can have their places.

    hot: Stop to such a node alone, and once it is Stopped the others go on in place, with a spare;
    else: all ranks may save and leave, and a generation without it follows. Till then it goes on as before.
    """

    def __init__(self, attempt: Attempt, closer: Closer, in_place: HotOpener) -> None:
        self._attempt = attempt
        self._closer = closer
        self._in_place = in_place

    def ask(self, index: int) -> None:
        """From now on; the first node, which coordinates, cannot be drained."""
        node = self._attempt.nodes.get(index)
        if node is None or node.drained or index == self._attempt.plan.nodes[0].index:
            return
        node.drained = True
        self._attempt.nodes.settle(node)
        self._attempt.ledger.record("drain_asked", f"node {index} is to be drained", node=index)

    def look(self) -> None:
        """A generation is open: can ranks of drained nodes move now?"""
        attempt = self._attempt
        if attempt.phase is not AttemptPhase.RUNNING or attempt.leaving or attempt.current.failures:
            return
        drained = [node for node in map(attempt.nodes.__getitem__, attempt.current.members) if node.drained]
        if not drained:
            return
        found = Verdict(Cause.PREEMPTED, f"{' and '.join(map(str, drained))} is drained", node=drained[0].index)
        indexes = {node.index for node in drained}
        obstacle = self._in_place.obstacle_without(indexes)
        if obstacle == "" and all(node.hears_us for node in drained):
            self._begin(drained, found)
        elif self._others_suffice(indexes):
            attempt.warm_because = obstacle or ""
            self._closer.close(found, saves=True)

    def _begin(self, drained: list[KnownNode], found: Verdict) -> None:
        """Their ranks are ended first: of each place there is one process at a time."""
        attempt = self._attempt
        attempt.leaving, attempt.lost = {node.index for node in drained}, found
        attempt.blame_at = attempt.mono + CLOSE_S
        attempt.standing.message = found.text
        for node in drained:
            attempt.ledger.send(node.index, Stop(attempt.current.number, 0.0))

    def _others_suffice(self, leave: set[int]) -> bool:
        nodes, plan = self._attempt.nodes, self._attempt.plan
        stay = {index for index in self._attempt.current.members if index not in leave}
        return len(stay | nodes.usable) >= plan.nodes_min and nodes.short_of(stay | nodes.usable) is None
