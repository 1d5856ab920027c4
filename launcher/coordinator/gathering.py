"""Decide whether enough nodes are ready to open a generation, and whether there can still be. Pure functions."""

from math import inf

from launcher.coordinator.nodes import NodeTable
from launcher.coordinator.verdict import Verdict
from launcher.plan.model import Plan
from launcher.states import Cause

SPARE_S = 5.0  # how long a full set of nodes that includes spares waits for the ones the plan prefers
_MOST_TOLD = 2
GIVE_UP_WAITS = 5  # after that many times `recovery.wait`, nodes that never came are not waited for


class Gathering:
    """One wait for enough nodes to open a generation, at the start of an attempt or after a failure."""

    def __init__(self, plan: Plan, nodes: NodeTable, mono: float, open_at: float, *, first: bool) -> None:
        self._plan = plan
        self._least = plan.nodes_min
        self._nodes = nodes
        self._wait_until = mono + plan.spec.recovery.wait_s
        self._give_up_at = mono + GIVE_UP_WAITS * plan.spec.recovery.wait_s
        self._open_at = open_at
        self._first = first
        self._full_at: float | None = None  # since when there are as many as can be used, but not the preferred ones

    def deadlines(self) -> list[float]:
        """Return the times at which `complete` or `may_succeed` may change although no node reports anything."""
        spare_at = [] if self._full_at is None else [self._full_at + SPARE_S]
        returns = self._nodes.returning(-inf).values()
        return [self._open_at, self._wait_until, self._give_up_at, *spare_at, *returns]

    def may_succeed(self, mono: float) -> bool:
        """Return whether enough nodes for a generation are usable or can still become usable."""
        left = self._nodes.usable | self._nodes.hopeful | self._nodes.returning(mono).keys()
        if self._first and mono < self._give_up_at:
            left |= self._nodes.absent
        return self._plan.nodes[0].index in left and self._suffice(left)

    def _suffice(self, nodes: set[int]) -> bool:
        """Return whether these nodes are enough for the plan and include enough voters."""
        own = [index for index in nodes if not self._nodes[index].votes_only]
        return len(own) >= self._least and self._nodes.quorum_shortfall(nodes | self._nodes.only_voting) is None

    @property
    def _awaited(self) -> set[int]:
        """Return the nodes to wait for before the first generation: all but spares.

        Spares are included if their disks may have the newest checkpoint, or if they have to replace a node that is
        unfit.
        """
        nodes, awaited = self._nodes, self._nodes.missing - self._nodes.unfit
        stand_ins = bool(nodes.unfit) and len(nodes.usable) < self._plan.nodes_max
        return awaited | nodes.absent | nodes.hopeful if self._plan.disks_apart or stand_ins else awaited

    def complete(self, mono: float) -> bool:
        """Return whether a generation can be opened now."""
        nodes, plan = self._nodes, self._plan
        if mono < self._open_at or plan.nodes[0].index not in nodes.usable or not self._suffice(nodes.usable):
            return False
        if not self._first or not self._awaited:
            return True  # after a failure the remaining nodes continue at once
        if len(nodes.usable) < plan.nodes_max:
            self._full_at = None
            return mono >= self._wait_until
        if self._full_at is None:
            self._full_at = mono
        return mono >= self._full_at + SPARE_S or not self._awaited & (nodes.hopeful | nodes.absent)

    def shortage(self) -> Verdict:
        """Return the verdict that too few nodes can be used, with the reasons."""
        least, nodes = self._least, self._nodes.usable | self._nodes.hopeful
        text = f"{len(nodes)} of at least {least} node{'s' if least > 1 else ''} can be used"
        short = self._nodes.quorum_shortfall(nodes | self._nodes.only_voting)
        if len(nodes) >= least and short is not None:
            text = f"{short[0]} of the {short[1]} voters can be used: the others may elect another leader"
        if self._nodes.unfit:
            first = self._nodes[min(self._nodes.unfit)]
            words = "; ".join([text, *self._unfit_words()])
            return Verdict(Cause.NODE_LOST, words, node=first.index, evidence=first.fault)
        faulty = next((node for node in self._nodes if node.fault), None)
        if faulty is None:
            return Verdict(Cause.NODE_LOST, text)
        return Verdict(Cause.LAUNCHER_FAULT, f"{text}; node {faulty.index}: {faulty.fault}", node=faulty.index)

    def waiting_text(self, mono: float) -> str:
        """Return the text that shows what the run waits for, and for how long it has waited."""
        waits = [node for node in self._nodes if node.preparing and node.hopeful]
        doing = [f"{node.preparing}, {mono - node.preparing_since:.0f} s" for node in waits[:1]]
        if doing and self._plan.nodes_max == 1 and not self._nodes.unfit:
            return doing[0]
        text = f"waiting for nodes: {len(self._nodes.usable)} of {self._plan.nodes_max} are ready"
        leaving = [f"{node} is about to go: {node.leaves}" for node in self._nodes if node.leaves and node.hopeful]
        doing = [f"node {waits[0].index}: {one}" for one in doing]
        return "; ".join([text, *doing, *leaving[:_MOST_TOLD], *self._unfit_words()])

    def _unfit_words(self) -> list[str]:
        """Return a short text for each unfit node, the first few by name and the rest as a count."""
        found = [self._nodes[index] for index in sorted(self._nodes.unfit)]
        more = [f"and {len(found) - _MOST_TOLD} more"] if len(found) > _MOST_TOLD else []
        return [*(f"{node} is unfit: {node.fault}" for node in found[:_MOST_TOLD]), *more]
