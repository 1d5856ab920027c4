"""Decide whether enough nodes are ready to open a generation (start a set of ranks that train together), and whether
there can still be. Pure functions. Every time `mono` is by the coordinator's monotonic clock. A spare is a node beyond
those that the run needs, ready to replace one.
"""

from collections.abc import Set as AbstractSet
from math import inf

from launcher.coordinator.nodes import NodeTable
from launcher.coordinator.verdict import Verdict
from launcher.plan.model import Plan
from launcher.states import Cause

SPARE_S = 5.0  # how long a full set of nodes that includes spares waits for the ones the plan prefers
_MOST_TOLD = 2
GIVE_UP_WAITS = 5  # after that many times `recovery.wait`, nodes that never came are not waited for


class Gathering:
    """A wait for enough nodes to open a generation, at the start of an attempt (`first`) or after a failure.

    It begins at `mono`; no generation is opened before `open_at`.
    """

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
        """Return the times at which the answer of `complete` (can a generation be opened now?) or of `may_succeed` (can
        there still be enough nodes?) may change although no node reports anything. Some may be in the past.
        """
        spare_at = [] if self._full_at is None else [self._full_at + SPARE_S]
        returns = self._nodes.returning(-inf).values()
        return [self._open_at, self._wait_until, self._give_up_at, *spare_at, *returns]

    def may_succeed(self, mono: float) -> bool:
        """Return whether the nodes that are usable, or can still become usable, are enough for a generation: among them
        must be the coordinator's own node, as many nodes as the plan needs at least and, in a pool, so many voters that
        the remaining voters cannot elect another leader.
        """
        groups = [self._nodes.usable, self._nodes.hopeful, self._nodes.returning(mono).keys()]
        if self._first and mono < self._give_up_at:
            groups.append(self._nodes.absent)
        return any(self._plan.nodes[0].index in group for group in groups) and self._suffice(*groups)

    def _suffice(self, *groups: AbstractSet[int]) -> bool:
        """Return whether the nodes in these sets, which have none in common, are as many as the plan needs and include
        so many voters that the others cannot elect another leader.
        """
        own = sum(len(group) - len(self._nodes.votes_only & group) for group in groups)
        return own >= self._least and self._nodes.quorum_shortfall(*groups, self._nodes.only_voting) is None

    @property
    def _awaits_spares(self) -> bool:
        """Return whether the first generation waits for spares as well as for the plan's nodes: their disks may have
        the newest checkpoint, or they have to replace a node that is unfit.
        """
        stand_in = bool(self._nodes.unfit) and len(self._nodes.usable) < self._plan.nodes_max
        return self._plan.disks_apart or stand_in

    @property
    def _awaits(self) -> bool:
        """Return whether the first generation still waits for a node. It waits for each of the plan's nodes, spares
        aside, that is not usable yet and was not found unfit; with `_awaits_spares`, also for any node that has not
        connected or is not ready.
        """
        nodes = self._nodes
        if len(nodes.missing) > len(nodes.unfit & nodes.missing):
            return True
        return self._awaits_spares and bool(nodes.absent or nodes.hopeful)

    @property
    def _may_come(self) -> bool:
        """Return whether a node that the first generation waits for can still connect or become ready. It waits for all
        nodes of the plan and, with `_awaits_spares`, for spares.
        """
        nodes = self._nodes
        if self._awaits_spares:
            return bool(nodes.hopeful or nodes.absent)
        awaited = nodes.missing - nodes.unfit
        return not (awaited.isdisjoint(nodes.hopeful) and awaited.isdisjoint(nodes.absent))

    def complete(self, mono: float) -> bool:
        """Return whether a generation can be opened now: any back-off is over, and the first node, as many nodes as the
        plan needs at least and, in a pool, enough voters are usable (connected and ready).

        The first generation waits in addition, up to a limit, for all nodes of the plan, and then shortly for spares.
        """
        nodes, plan = self._nodes, self._plan
        if mono < self._open_at or plan.nodes[0].index not in nodes.usable or not self._suffice(nodes.usable):
            return False
        if not self._first or not self._awaits:
            return True  # after a failure the remaining nodes continue at once
        if len(nodes.usable) < plan.nodes_max:
            self._full_at = None
            return mono >= self._wait_until
        if self._full_at is None:
            self._full_at = mono
        return mono >= self._full_at + SPARE_S or not self._may_come

    def shortage(self) -> Verdict:
        """Return the verdict, for the end of the attempt, that too few nodes can be used to open a generation, with the
        reasons.
        """
        least, nodes = self._least, self._nodes.usable | self._nodes.hopeful
        text = f"{len(nodes)} of at least {least} node{'s' if least > 1 else ''} can be used"
        short = self._nodes.quorum_shortfall(nodes, self._nodes.only_voting)
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
        """Return the text that shows what the run waits for: how many nodes are ready, what the first node that is not
        ready does and for how long, and which nodes are about to go or cannot be used.

        A run on one node gets only the second of these, if the node is being prepared.
        """
        waits = [node for node in self._nodes if node.preparing and node.hopeful]
        doing = [f"{node.preparing}, {mono - node.preparing_since:.0f} s" for node in waits[:1]]
        if doing and self._plan.nodes_max == 1 and not self._nodes.unfit:
            return doing[0]
        text = f"waiting for nodes: {len(self._nodes.usable)} of {self._plan.nodes_max} are ready"
        leaving = [f"{node} is about to go: {node.leaves}" for node in self._nodes if node.leaves and node.hopeful]
        doing = [f"node {waits[0].index}: {one}" for one in doing]
        return "; ".join([text, *doing, *leaving[:_MOST_TOLD], *self._unfit_words()])

    def _unfit_words(self) -> list[str]:
        """Return short texts about the nodes that get no ranks because of a faulty device or a slow link: the first few
        with their fault, and a count of the rest.
        """
        found = [self._nodes[index] for index in sorted(self._nodes.unfit)]
        more = [f"and {len(found) - _MOST_TOLD} more"] if len(found) > _MOST_TOLD else []
        return [*(f"{node} is unfit: {node.fault}" for node in found[:_MOST_TOLD]), *more]
