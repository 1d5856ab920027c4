"""The nodes of an attempt as the coordinator sees them: connected, lost or unknown, and until when each lease lasts. A
generation is one set of ranks that train together. Every time `mono` is by the coordinator's monotonic clock. A voter
takes part in electing the leader, the host whose coordinator runs the attempt. An agent is the launcher's process on a
node.
"""

from collections.abc import Collection, Iterator
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from enum import Enum, auto
from math import inf

from launcher.clock import ENDING_S
from launcher.plan.model import NodePlan
from launcher.plan.on_hosts import quorum
from launcher.run.records import NodeLoad, ProcessId


class Presence(Enum):
    """The coordinator's knowledge of a node's agent: never seen, connected, out of reach (it may still run),
    or lost.
    """

    ABSENT = auto()  # its agent has never connected
    UP = auto()
    UNKNOWN = auto()  # its connection has closed; the agent may still run
    LOST = auto()  # proven dead, or its lease has expired, after which it ends its ranks by itself


@dataclass(slots=True, eq=False)
class KnownNode:
    """A node of the plan, with the state of its agent, its fitness, its ranks and its lease."""

    index: int
    address: str  # the host name or IP address by which other nodes reach it
    spare: bool  # it is beyond the nodes that the run needs, and has no ranks at first
    host: str = ""  # the cluster's name of the machine, if it has one
    votes_only: bool = False  # its host belongs to another role and only votes: it never has ranks of this plan
    link: Presence = Presence.ABSENT  # whether its agent is connected
    process: ProcessId | None = None  # its newest agent
    ready: bool = False  # everything that has to precede its first rank, such as imports, is done
    preparing: str = ""  # the work that it has to complete before it is ready, such as an import
    preparing_since: float = 0.0  # when that began, by the coordinator's monotonic clock
    fault: str = ""  # why it gets no more ranks
    unfit: bool = False  # the fault is a faulty device or a slow link
    drained: bool = False  # it gets no more ranks, by request
    failing: str = ""  # the kernel's report of a device that is about to fail
    leaves: str = ""  # why its host is about to leave; it gets no more ranks
    leaves_by: float = 0.0  # the latest time at which its ranks have to save
    slow: str = ""  # text that names its rank which all others waited for
    moves: bool = False  # its ranks are being moved to another node; it gets no ranks if other nodes suffice
    wanted: bool = False  # ranks are to be moved to this node
    could_not_join: ProcessId | None = None  # the agent whose ranks failed or were late when they had to join others
    suspected_at: float = 0.0  # when its disk or the start of a rank on it last ended a generation
    port: int = 0  # the MASTER_PORT of its ranks if it has rank 0
    replica_port: int = 0  # the port at which it sends and receives checkpoint files; 0: none
    link_port: int = 0  # the port at which the link to it is measured; 0: none
    connected_at: float = inf  # when its newest connection was made: all that came over it was sent later
    heard_at: float = 0.0  # when its last message came, by the coordinator's monotonic clock
    follows_from: float = 0.0  # the agent's present lease began then or later, by the coordinator's clock
    answers: dict[int, float] = field(default_factory=dict)  # by number, when its newest heartbeats were answered
    lost_at: float = 0.0  # when its agent was last found to be lost
    returns_by: float = 0.0  # the time before which its supervisor starts a new agent after the old one has died
    holds: int = 0  # the generation whose ranks may still run there; 0: none
    given_up: int = 0  # the newest generation whose ranks there were given up, so that others may replace them
    stale_agent: ProcessId | None = None  # the previous agent, which had ranks and may still run
    stale_until: float = 0.0  # when that agent's lease ends
    load: NodeLoad | None = None  # the newest sample of its CPUs, memory and GPUs

    def __str__(self) -> str:
        return f"node {self.index}{f' ({self.host})' if self.host else ''}"

    def record_preparation(self, what: str, mono: float) -> None:
        """Record what the node still has to finish before it is ready (`what`; "" for nothing) and, if that has
        changed, the time `mono` as its beginning.
        """
        if what != self.preparing:
            self.preparing, self.preparing_since = what, mono

    def mark_ready(self, mono: float) -> None:
        """Record that the node's preparation, such as its imports, was complete at the time `mono`, so that ranks can
        be started on it.
        """
        if not self.ready:  # else it may import again for later ranks
            self.record_preparation("", mono)  # the last heartbeat still said what it had to complete
        self.ready = True

    @property
    def is_replaced(self) -> bool:
        """Return True if ranks may still run on the node but were given up, so that other nodes may take their
        places.
        """
        return 0 < self.holds <= self.given_up

    @property
    def usable(self) -> bool:
        """Return True if ranks can be started on the node now: its agent is connected and ready, it is neither left out
        (faulty, drained or another role's) nor about to leave, and no earlier ranks or agent may still run there.
        """
        return (
            self.link is Presence.UP
            and self.ready
            and not self.is_left_out
            and not self.leaves
            and not self.holds
            and self.stale_agent is None
        )

    @property
    def is_left_out(self) -> bool:
        """Return True if the node gets no ranks: it has a `fault`, it is `drained`, or its host runs another program
        of the same run (another role) and only votes here.
        """
        return self.fault != "" or self.drained or self.votes_only

    @property
    def hopeful(self) -> bool:
        """Return True if ranks cannot be started on the node now (it is not `usable`), but may be later: its agent is
        not known to be lost, and it is not left out (faulty, drained or another role's).
        """
        return self.link in (Presence.UP, Presence.UNKNOWN) and not self.is_left_out and not self.usable

    @property
    def returns(self) -> bool:
        """Return True if only the node's agent has died and a new one is expected until the time `returns_by`."""
        return self.link is Presence.LOST and self.returns_by > 0.0 and not self.is_left_out

    @property
    def is_reachable(self) -> bool:
        """Return True if messages to the node reach the agent that runs its ranks: an agent is connected, and no
        earlier agent of the node may still run.
        """
        return self.link is Presence.UP and self.stale_agent is None


class NodeTable:
    """The nodes of an attempt, with sets of the indexes of those in a state, such as `usable` or `absent`; a node may
    be in several. Call `settle` after any change to a node, to update these sets.
    """

    def __init__(
        self,
        nodes: tuple[NodePlan, ...],
        lease_s: float,
        lost: Collection[int] = (),
        mono: float = 0.0,
        voters: frozenset[int] = frozenset(),
    ) -> None:
        """Take the plan's nodes; those in `lost` count as lost from the start, and a generation needs at least half of
        `voters`.
        """
        self._nodes = {
            plan.index: KnownNode(plan.index, plan.address, plan.spare, plan.host, plan.votes_only) for plan in nodes
        }
        for index in lost:
            self[index].link, self[index].lost_at = Presence.LOST, mono
        self._lease_s, self._guests = lease_s, frozenset(lost)
        self.voters = voters
        self.votes_only = frozenset(plan.index for plan in nodes if plan.votes_only)
        self.absent = self._nodes.keys() - lost
        self.usable: set[int] = set()
        self.hopeful: set[int] = set()
        self._returning: set[int] = set()
        self.unknown: set[int] = set()
        self.missing = {node.index for node in self if not node.spare}  # no spares, and not usable
        self.unfit: set[int] = set()
        self.to_leave: set[int] = set()  # drained, or their hosts are about to go
        self.look_at = inf  # no lease runs out before this moment

    def __iter__(self) -> Iterator[KnownNode]:
        return iter(self._nodes.values())

    def __getitem__(self, index: int) -> KnownNode:
        return self._nodes[index]

    def get(self, index: int) -> KnownNode | None:
        """Return the node with this index, or None if the plan has none."""
        return self._nodes.get(index)

    def away(self, since: float = -inf) -> list[KnownNode]:
        """Return the nodes whose agent has never connected or is unreachable, and those that were lost after the time
        `since`; any of them may still return with its disk.
        """
        return [
            node
            for node in self
            if node.link in (Presence.ABSENT, Presence.UNKNOWN) or (node.link is Presence.LOST and node.lost_at > since)
        ]

    def followers(self, mono: float) -> set[int]:
        """Return the indexes of the nodes that certainly follow this coordinator, because their leases run; others may
        vote for a new leader.
        """
        return {
            node.index
            for node in self
            if node.link is not Presence.ABSENT and node.follows_from + self._lease_s - ENDING_S > mono
        }

    def quorum_shortfall(self, *groups: AbstractSet[int]) -> tuple[int, int] | None:
        """Return (the number of voters in `groups`, the number of all voters) if fewer than half of the voters are in
        these sets of node indexes, so that the others could elect another leader; return None if there are enough.
        """
        there = sum(any(index in group for group in groups) for index in self.voters)
        return (there, len(self.voters)) if there < quorum(len(self.voters)) else None

    @property
    def only_voting(self) -> set[int]:
        """Return the indexes of the nodes of other roles that are not known to be lost and so vote together with this
        plan's nodes.
        """
        there = (Presence.UP, Presence.UNKNOWN)
        return {index for index in self.votes_only if self[index].link in there}

    @property
    def unaccounted(self) -> list[KnownNode]:
        """Return the nodes where ranks that were replaced may still run, as no agent has reported their end."""
        return [node for node in self if node.is_replaced or (node.index in self._guests and node.process is None)]

    def returning(self, mono: float) -> dict[int, float]:
        """Return the nodes whose agent has died and whose supervisor is about to start another: by index, the time,
        later than `mono`, until which the new agent is awaited.
        """
        moments = {index: self[index].returns_by for index in self._returning}
        return {index: moment for index, moment in moments.items() if moment > mono}

    @property
    def connected(self) -> set[int]:
        """Return the indexes of all nodes whose agent is connected."""
        return {node.index for node in self if node.link is Presence.UP}

    def settle(self, node: KnownNode) -> None:
        """Update the table's sets of nodes by state, such as `usable`, after a change to this node."""
        _set_membership(self.absent, node.index, node.link is Presence.ABSENT)
        _set_membership(self.usable, node.index, node.usable)
        _set_membership(self.hopeful, node.index, node.hopeful)
        _set_membership(self._returning, node.index, node.returns)
        _set_membership(self.unknown, node.index, node.link is Presence.UNKNOWN or node.stale_agent is not None)
        _set_membership(self.missing, node.index, not node.usable and not node.spare)
        _set_membership(self.unfit, node.index, node.unfit)
        _set_membership(self.to_leave, node.index, node.drained or node.leaves != "")

    def renew_lease(self, node: KnownNode, mono: float) -> None:
        """Let the lease of the node's agent run anew from `mono`, as a message from it has arrived."""
        node.heard_at = mono
        self.look_at = min(self.look_at, mono + self._lease_s)

    def answer(self, node: KnownNode, seq: int, answered: int, took_s: float, mono: float) -> None:
        """Record that heartbeat number `seq` is answered now, at `mono`, and that the node has received the answer to
        heartbeat number `answered`, `took_s` seconds by its own clock after it had sent that heartbeat. From this
        follows since when the agent's lease counts.
        """
        if answered in node.answers:
            node.follows_from = max(node.follows_from, node.answers[answered] - took_s)
            node.answers = {one: at for one, at in node.answers.items() if one > answered}
        node.answers[seq] = mono

    def track_stale_agent(self, node: KnownNode) -> None:
        """Track the node's previous agent as stale, because another agent reports for the node: until its lease ends or
        it is forgotten, its ranks may still run.
        """
        if node.stale_agent is None:
            node.stale_agent, node.stale_until = node.process, node.heard_at + self._lease_s
        self.look_at = min(self.look_at, node.stale_until)

    def forget_stale_agent(self, node: KnownNode) -> None:
        """Stop tracking the node's previous agent. Call it once that agent has exited, or turns out to be the same one
        that reports now.
        """
        node.stale_agent = None
        self.look_at = min(self.look_at, node.heard_at + self._lease_s)

    def overdue(self, mono: float) -> list[KnownNode]:
        """Return the nodes whose lease has expired: that of the node's agent or, if a previous agent of the node had
        ranks and may still run, the lease of that one.
        """
        if mono < self.look_at:
            return []
        ends = {node.index: self._lease_end(node) for node in self}
        self.look_at = min((end for end in ends.values() if end > mono), default=inf)
        return [self[index] for index, end in ends.items() if end <= mono]

    def _lease_end(self, node: KnownNode) -> float:
        """Return when the lease of the node's stale agent ends (a previous one that had ranks and may still run) if it
        has one, else that of its agent; infinity if neither has a lease.
        """
        if node.stale_agent is not None:
            return node.stale_until
        return node.heard_at + self._lease_s if node.link in (Presence.UP, Presence.UNKNOWN) else inf


def _set_membership(group: set[int], index: int, belongs: bool) -> None:
    """Add the index to the group if `belongs`, else remove it."""
    if belongs:
        group.add(index)
    else:
        group.discard(index)
