"""Track which agents have joined, fallen silent, returned or been lost, and what that means for their ranks. A
generation is one set of ranks that train together. An agent is the launcher's process on a node; its lease is how long
it counts as alive without a heartbeat, which renews it.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from launcher.coordinator.effects import Ledger, ProvenDead
from launcher.coordinator.nodes import KnownNode, NodeTable, Presence
from launcher.states import Cause
from launcher.wire.messages import Join, Welcome

RETURN_S = 10.0  # an agent that died, on a machine that did not: its supervisor starts another at once


@dataclass(frozen=True, slots=True)
class Loss:
    """The loss of an agent for good, with all its ranks, and the evidence for it."""

    node: int  # its index
    held: int  # the generation of its ranks; 0: it had none
    text: str  # one line for the user
    evidence: str


@dataclass(frozen=True, slots=True)
class Arrival:
    """An agent that has joined: its node, whether its ranks may continue, and the loss of the node's previous agent, if
    any.
    """

    node: KnownNode
    carries_on: bool  # the same process as before, whose ranks were not given up in between
    loss: Loss | None = None  # the loss of the node's previous agent


class Attendance:
    """The part of the coordinator that renews the agents' leases, and decides when an agent counts as lost: once its
    lease has expired, or as soon as it is proven dead.
    """

    def __init__(self, nodes: NodeTable, lease_s: float, ledger: Ledger) -> None:
        self._nodes = nodes
        self._lease_s = lease_s
        self._ledger = ledger

    def arrive(self, join: Join) -> Arrival | None:
        """Register an agent that joins or joins again, and begin its lease. Return the node, whether its ranks may
        continue, and the loss of the node's previous agent, if any; or None if the plan has no such node.

        The caller handles the ranks that the agent may still run, and those that were lost with the node's previous
        agent.
        """
        node = self._nodes.get(join.node)
        if node is None:
            return None
        self._ledger.send(node.index, Welcome(self._lease_s, brief=True))
        known = join.process in (node.process, node.stale_agent)
        carries_on, loss = known and node.link is not Presence.LOST, None
        if not known:
            loss = self._replace(node, join)
        elif join.process == node.stale_agent:
            self._nodes.forget_stale_agent(node)
        node.process, node.address, node.port = join.process, join.address, join.port
        node.replica_port, node.link_port = join.replica_port, join.link_port
        node.link, node.ready = Presence.UP, node.ready and known
        self._nodes.renew_lease(node, self._ledger.mono)
        if not known:  # else it may not get the Welcome, and its lease goes on as before
            node.follows_from = min(node.connected_at, self._ledger.mono)
        node.answers = {}
        self._nodes.settle(node)
        text = f"node {node.index} joined {'again ' if known else ''}from {join.address}"
        self._ledger.record("agent_joined", text, node=node.index)
        return Arrival(node, carries_on, loss)

    def renew_lease(self, node: KnownNode) -> bool:
        """Renew the lease of a connected agent; return True if the agent had counted as lost, so that its old ranks
        must be stopped.
        """
        thawed = node.link is Presence.LOST
        if thawed:
            node.link = Presence.UP
            self._ledger.record("agent_joined", f"node {node.index} is connected again", node=node.index)
            self._nodes.settle(node)
        if node.link is Presence.UP:
            self._nodes.renew_lease(node, self._ledger.mono)
        return thawed

    def disconnect(self, index: int) -> None:
        """Mark the node's agent as unreachable; the agent counts as lost only once its lease has expired."""
        node = self._nodes.get(index)
        if node is None or node.link is not Presence.UP:
            return
        node.link = Presence.UNKNOWN
        self._nodes.settle(node)
        left_s = max(0.0, node.heard_at + self._lease_s - self._ledger.mono)
        text = f"node {index} cannot be reached; its lease has {left_s:.0f} s left"
        self._ledger.record("agent_unknown", text, node=index)

    def mark_dead(self, death: ProvenDead) -> Iterator[Loss]:
        """Mark as dead the agent that was last connected from the node in `death`, as it has been proven to have exited
        with all its ranks. Yield the loss of it, if it had not been counted as lost before.

        If an agent is connected from this node, and no earlier one is still counted as alive, do nothing.
        """
        node = self._nodes.get(death.node)
        if node is None or (node.link is Presence.UP and node.stale_agent is None):
            return  # about an agent before this one, whose end has been dealt with
        if node.stale_agent is not None:
            yield self._lose_stale_agent(node, death.evidence)
        elif node.link is Presence.UNKNOWN:
            yield self._lose(node, death.evidence)
        if node.link is Presence.LOST:
            node.holds, node.process = 0, None
            node.returns_by = self._ledger.mono + RETURN_S
        self._nodes.settle(node)

    def expire_leases(self) -> Iterator[Loss]:
        """Mark each agent whose lease has expired as lost, record that, and yield the Loss (which node, which ranks,
        why); the caller decides what becomes of the ranks.

        A node may have two leases: its agent's, and that of its previous agent, which is not known to have exited.
        """
        evidence = f"no heartbeat for {self._lease_s:g} s"
        while overdue := self._nodes.overdue(self._ledger.mono):
            for node in overdue:
                yield self._lose(node, evidence) if node.stale_agent is None else self._lose_stale_agent(node, evidence)
                self._nodes.settle(node)

    def _replace(self, node: KnownNode, join: Join) -> Loss | None:
        """Handle a new agent on a node that had another agent, and forget the faults that the other one reported.

        Return the loss of the previous agent if it had ranks and is proven dead, by a reboot of the machine or because
        the new agent reports its death. Else return None; if its ranks may still run, it is tracked as a stale agent
        until its lease ends.
        """
        before, process, loss = node.process, join.process, None
        if node.holds and node.link is not Presence.LOST and before is not None:
            if before.host == process.host and before.boot_id != process.boot_id:
                loss = self._lose(node, "its machine was rebooted")
                node.holds = 0
            elif join.buried == before:
                loss = self._lose(node, f"its agent, process {before.pid}, died")
                node.holds = 0
            else:
                self._nodes.track_stale_agent(node)
        elif node.stale_agent is None:
            node.holds = 0
        node.fault, node.unfit, node.slow, node.leaves = "", False, "", ""
        if node.failing and before is not None and before.boot_id != process.boot_id:
            node.failing, node.drained = "", False
        return loss

    def _lose(self, node: KnownNode, evidence: str) -> Loss:
        """Mark the node as lost, as `evidence` shows; record the loss as an event, and return it.

        The caller decides what becomes of the ranks on it.
        """
        node.link, node.ready, node.lost_at, node.returns_by = Presence.LOST, False, self._ledger.mono, 0.0
        node.given_up = max(node.given_up, node.holds)
        return self._loss(node, f"node {node.index} is lost: {evidence}", evidence, node.holds)

    def _lose_stale_agent(self, node: KnownNode, evidence: str) -> Loss:
        """Record that the node's previous agent, which had ranks and might still have run, is gone, as `evidence`
        shows, so that these ranks may be replaced; record the loss as an event, and return it.
        """
        self._nodes.forget_stale_agent(node)
        held, node.given_up, node.holds = node.holds, max(node.given_up, node.holds), 0
        return self._loss(node, f"the agent that node {node.index} had before is gone: {evidence}", evidence, held)

    def _loss(self, node: KnownNode, text: str, evidence: str, held: int) -> Loss:
        """Record the event `agent_lost` with the sentence `text`, and return the loss, for the caller to act on; the
        node's state is not changed here. `evidence` is text that says what shows that the agent is gone, and `held` is
        the generation of the agent's ranks (0: it has none).
        """
        self._ledger.record("agent_lost", text, node=node.index, cause=Cause.NODE_LOST, evidence=evidence)
        return Loss(node.index, held, text, evidence)
