"""The nodes as the coordinator knows them, and who of them takes part in the next generation. Pure."""

from collections.abc import Iterable
from dataclasses import dataclass

from launcher.plan.model import Plan
from launcher.rundir.records import NodeState


@dataclass(slots=True)
class Node:
    """One agent, from the coordinator's side of the wire."""

    index: int
    address: str
    spare: bool
    connected: bool = False
    ready: bool = False
    lost: bool = False  # known to be gone: nothing of it runs any more
    heard_at: float = 0.0
    port: int = 0
    busy_with: int = 0  # the generation whose processes may be on it; 0: none

    @property
    def usable(self) -> bool:
        return self.connected and self.ready and not self.lost and self.busy_with == 0


class Roster:
    """All nodes of the plan."""

    def __init__(self, plan: Plan, now: float) -> None:
        self.nodes = [Node(node.index, node.address, node.spare, heard_at=now) for node in plan.nodes]
        self._min, self._max = plan.nodes_min, plan.nodes_max

    def __getitem__(self, index: int) -> Node:
        return self.nodes[index]

    def chosen(self) -> list[Node]:
        """Who takes part next, in the order of their ranks; empty: node 0, or the least number, is not there.

        Planned nodes before spares, low numbers first, so that ranks stay where they were wherever that is possible.
        """
        usable = sorted((node for node in self.nodes if node.usable), key=lambda node: (node.spare, node.index))
        chosen = usable[: self._max]
        if len(chosen) < self._min or chosen[0].index != 0:
            return []
        return sorted(chosen, key=lambda node: node.index)

    def complete(self) -> bool:
        """Everybody that can still come is there."""
        return len(self.chosen()) == self._max and all(node.usable or node.spare for node in self.nodes)

    def enough_left(self) -> bool:
        """Whether a generation could be opened once the nodes that are there are free and ready."""
        there = [node for node in self.nodes if node.connected and not node.lost]
        return len(there) >= self._min and not self.nodes[0].lost

    def silent(self, now: float, lease_s: float) -> Iterable[Node]:
        """Nodes that must count as gone: not heard for longer than the lease."""
        return (node for node in self.nodes if self.owes_word(node) and now - node.heard_at >= lease_s)

    @staticmethod
    def owes_word(node: Node) -> bool:
        return not node.lost and (node.connected or node.busy_with != 0)

    def view(self, members: dict[int, tuple[int, ...]]) -> tuple[NodeState, ...]:
        return tuple(NodeState(node.index, node.address, _word(node), members.get(node.index, ())) for node in self.nodes)


def _word(node: Node) -> str:
    if node.lost:
        return "lost"
    if not node.connected:
        return "unknown" if node.busy_with else "waiting"
    return "spare" if node.spare and not node.busy_with else "up"
