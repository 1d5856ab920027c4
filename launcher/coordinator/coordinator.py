"""The coordinator: a pure state machine over (event, now) that decides generations. No clock, no socket, no disk. A
generation is one set of ranks that train together; another follows each failure or change of nodes. An agent is the
launcher's process on a node.

    WAITING ──enough nodes, delay over──► STARTING ──all Started──► RUNNING ──all ranks finished──► OVER
       ▲                                     │                         │
       │                                     └── failure, loss, stop ──┤     (disks apart: first COPYING, till Settled)
       └──────── policy: regroup ◄── CLOSING (Stop sent, Stopped or lost awaited) ◄──┘    policy: requeue, end ──► OVER

Closing a generation and opening the next are separate steps with the recovery policy between them.
"""

from collections.abc import Sequence
from math import inf
from typing import assert_never

from launcher.coordinator import verdict
from launcher.coordinator.attempt import Attempt, AttemptPhase
from launcher.coordinator.attendance import Attendance, Loss
from launcher.coordinator.closing import Aftermath, Closer
from launcher.coordinator.effects import (
    Disconnected,
    Drain,
    EndAttempt,
    In,
    Move,
    Now,
    Out,
    ProvenDead,
    StoodStill,
    Tick,
)
from launcher.coordinator.in_place.continuing import HotOpener
from launcher.coordinator.in_place.draining import Drainer
from launcher.coordinator.in_place.joining import Joiner
from launcher.coordinator.links import Links
from launcher.coordinator.nodes import KnownNode, Presence
from launcher.coordinator.opening import Opener
from launcher.coordinator.verdict import Verdict
from launcher.coordinator.watching import Watch
from launcher.plan.model import Plan
from launcher.run.records import Event, RunState
from launcher.states import Cause, State, exit_of
from launcher.wire import messages

_CALM_S = 0.25  # so long after an event, heartbeats that change nothing are answered without looking for what is due


class Coordinator:
    """The coordinator of one attempt as a pure state machine.

    Call `handle` with every message, and with a Tick at `next_deadline`; carry out the effects that it returns in
    order.
    """

    def __init__(
        self,
        plan: Plan,
        attempt: int,
        history: Sequence[Event],
        now: Now,
        job: str | None = None,
        used_s: float = 0.0,
    ) -> None:
        self._attempt = Attempt(plan, attempt, history, now, job, used_s)
        self._nodes = self._attempt.nodes
        self._ledger = self._attempt.ledger
        self._attendance = Attendance(self._nodes, plan.spec.recovery.lease_s, self._ledger)
        self._aftermath = Aftermath(self._attempt)
        self._closer = Closer(self._attempt, self._aftermath)
        in_place = HotOpener(self._attempt, self._aftermath)
        self._watch = Watch(self._attempt, self._closer, self._aftermath, in_place)
        self._links = Links(self._attempt, self._watch)
        self._opener = Opener(self._attempt, self._aftermath, self._links.are_known)
        self._drainer = Drainer(self._attempt, self._closer, in_place)
        self._joiner = Joiner(self._attempt, in_place)

    # -- the face to the shell

    def handle(self, event: In, now: Now) -> list[Out]:
        """Handle one event and return the effects to carry out, in order."""
        if self._attempt.phase is AttemptPhase.OVER:
            return []
        self._ledger.begin_event(now)
        match event:
            case Tick():
                pass  # whatever is due is done below
            case StoodStill():
                text = f"the coordinator stood still for {event.seconds:.0f} s, which count for no lease and no limit"
                self._ledger.record("coordinator_stalled", text)
            case Drain():
                self._drainer.ask(event)
            case Move():
                self._drainer.ask_to_move(event)
            case EndAttempt():
                self._stop_asked(messages.StopAsked(self._attempt.plan.nodes[0].index, event.kind))
            case Disconnected():
                self._attendance.disconnect(event.node)
            case ProvenDead():
                for loss in self._attendance.mark_dead(event):
                    self._lost(loss)
            case messages.Join():
                self._joined(event)
            case _:
                self._received(event)
        self._advance()
        return self._ledger.out

    def connect(self, node: int, mono: float) -> None:
        """Record that an agent of the node has connected at the monotonic time `mono`; its Join may come much later."""
        self._nodes[node].connected_at = mono

    def acknowledge(self, heartbeat: messages.Heartbeat, mono: float) -> messages.HeartbeatAck | None:
        """Handle a heartbeat that only renews its node's lease, and return the answer; return None, having done
        nothing, if `handle` has to handle it. `mono` is the present monotonic time.

        This saves time, as most heartbeats of thousands of nodes are such. A few in a second get None all the same,
        because `handle` also does what has become due.
        """
        node, attempt = self._nodes.get(heartbeat.node), self._attempt
        plain = (
            mono - self._ledger.mono < _CALM_S
            and node is not None
            and node.process is not None
            and node.link is Presence.UP
            and not node.is_replaced
            and heartbeat.preparing == node.preparing
            and heartbeat.fetched is None
            and not (heartbeat.keeps and not attempt.kept)
            and attempt.generation is not None
            and heartbeat.generation == attempt.generation.number
            and attempt.generation.is_unchanged_by(heartbeat, mono)
        )
        if node is None or not plain:
            return None
        if heartbeat.load is not None:
            node.load = heartbeat.load
        self._nodes.renew_lease(node, mono)
        self._nodes.answer(node, heartbeat.seq, heartbeat.answered, heartbeat.took_s, mono)
        return messages.HeartbeatAck(heartbeat.seq)

    def next_deadline(self) -> float | None:
        """Return the time by the monotonic clock at which the next Tick, the event that only time has passed, is
        needed, or None if none is.
        """
        moments = [self._nodes.look_at, self._attempt.limit_at, self._joiner.deadline(), *self._phase_moments()]
        soonest = min((moment for moment in moments if moment > self._ledger.mono), default=inf)
        return None if soonest == inf or self._attempt.phase is AttemptPhase.OVER else soonest

    def snapshot(self, now: Now, *, ended: bool = True) -> RunState:
        """Return the run's current state, as a record for `state.json`. With `ended=False` it does not say how the
        attempt ended, for use while that is not on disk yet.
        """
        return self._attempt.state(now, ended=ended)

    def _phase_moments(self) -> list[float]:
        """Return the times at which something is due in the current phase, such as the end of a wait for nodes."""
        attempt = self._attempt
        match attempt.phase:
            case AttemptPhase.WAITING:
                return [
                    *attempt.gathering.deadlines(),
                    self._links.deadline(),
                    attempt.awaited.until if attempt.awaited else inf,
                ]
            case AttemptPhase.STARTING:
                return [attempt.start_by, attempt.blame_at]
            case AttemptPhase.RUNNING:
                return [attempt.blame_at, self._watch.next_check()]
            case AttemptPhase.COPYING:
                return []
            case AttemptPhase.CLOSING:
                return [attempt.closing.gives_up_at if attempt.closing else inf]
            case AttemptPhase.OVER:
                return []
            case _:
                assert_never(attempt.phase)

    # -- nodes come and go

    def _joined(self, join: messages.Join) -> None:
        """Handle an agent that joins: act on the loss of the agent that it replaces, if there is one; then let the
        node's ranks continue if they are of the open generation, and stop any others.
        """
        arrival = self._attendance.arrive(join)
        if arrival is None:
            return
        if arrival.loss is not None:
            self._lost(arrival.loss)
        self._sort_out_ranks(arrival.node, join.generation, arrival.carries_on)
        self._nodes.settle(arrival.node)

    def _sort_out_ranks(self, node: KnownNode, claimed: int, carries_on: bool) -> None:
        """Handle the ranks of an agent that returns: let those of the open generation continue, and stop others.

        `claimed` is the generation that the agent says its ranks belong to; `carries_on` says that they may continue.
        If the agent has lost ranks of the open generation, close it.
        """
        generation = self._attempt.generation
        member = generation is not None and self._attempt.is_open and node.holds == generation.number
        if generation is not None and member and carries_on and claimed == generation.number:
            generation.returned.add(node.index)
            if generation.led:
                self._ledger.send(node.index, messages.Follow(generation.number))
            return
        if node.stale_agent is not None:
            return  # what the node holds is the stale agent's, and the new agent cannot stop it
        node.holds = max(node.holds, claimed)
        if member:
            text = f"the agent of node {node.index} came back without its ranks"
            self._closer.close(Verdict(Cause.NODE_LOST, text, node=node.index))
        elif node.holds:
            closing = self._attempt.closing
            grace_s = closing.grace_s if closing and not node.is_replaced else 0.0
            self._ledger.send(node.index, messages.Stop(node.holds, grace_s))

    def _lost(self, loss: Loss) -> None:
        """Handle the loss of a node: if it had ranks of the open generation, let the other ranks continue in their
        processes where that is possible, else close the generation, that is end them all.

        A generation that is being closed does not wait for the node any more.
        """
        generation, closing = self._attempt.generation, self._attempt.closing
        if closing is not None:
            closing.waits.discard(loss.node)
        if generation is None or loss.held != generation.number:
            return
        if self._attempt.phase is AttemptPhase.COPYING and generation.has_settled(loss.node):
            self._nodes[loss.node].holds = 0  # its ranks have ended, and what it had to give is on another disk
            return
        generation.lose(loss.node)
        found = Verdict(Cause.NODE_LOST, loss.text, node=loss.node, evidence=loss.evidence)
        if self._attempt.is_open:
            self._watch.lost(found)
        elif closing is not None and closing.verdict is None and verdict.is_of_peers_alone(generation):
            closing.verdict = found  # its peers noticed before we did

    # -- messages of nodes that have joined

    def _received(self, message: messages.ToCoordinator) -> None:
        """Handle a message from an agent. Ignore it if the node is unknown or has not joined; only a heartbeat of a
        known node is acknowledged even then.
        """
        node = self._nodes.get(message.node)
        if isinstance(message, messages.Heartbeat) and node is not None:
            if not node.is_replaced:  # its ranks may be stopped until they are allowed to continue: until Stopped
                self._ledger.send(node.index, messages.HeartbeatAck(message.seq))
                self._nodes.answer(node, message.seq, message.answered, message.took_s, self._ledger.mono)
            node.record_preparation(message.preparing, self._ledger.mono)
        if node is None or node.process is None:
            return
        if self._attendance.renew_lease(node) and node.holds:
            self._ledger.send(node.index, messages.Stop(node.holds, 0.0))
        match message:
            case messages.Ready():
                node.mark_ready(self._ledger.mono)
            case (
                messages.Leads()
                | messages.Started()
                | messages.Heartbeat()
                | messages.Exited()
                | messages.Stopped()
                | messages.Looked()
                | messages.Entered()
            ):
                self._watch.handle_ranks(node, message)
                self._joiner.receive(message)
                self._drainer.receive(message)
            case messages.Fault():
                self._fault(node, message)
            case messages.StopAsked():
                self._stop_asked(message)
            case (
                messages.NotFetched()
                | messages.NothingWhole()
                | messages.Copied()
                | messages.Settled()
                | messages.Noted()
            ):
                self._watch.handle_checkpoints(message)
            case messages.DeviceFails() | messages.HostLeaves():
                self._will_fail(node, message)
            case messages.LinkSeen():
                self._links.receive(message)
            case messages.Join():
                raise AssertionError("a Join has a way of its own")
            case _:
                assert_never(message)
        if not isinstance(message, messages.Heartbeat):
            self._nodes.settle(node)

    def _will_fail(self, node: KnownNode, message: messages.DeviceFails | messages.HostLeaves) -> None:
        """Have the ranks moved off a node whose device or host is about to fail, as soon as others can take them; end
        the attempt if the coordinator's own host leaves. A HostLeaves without a text means that the host stays after
        all.
        """
        if isinstance(message, messages.DeviceFails):
            self._drainer.fails(node, f"its kernel tells of {message.text}")
            return
        self._drainer.leaves(node, message.text)
        if message.text and self._attempt.is_open and node.index == self._attempt.plan.nodes[0].index:
            self._stop_asked(messages.StopAsked(node.index, "notice"))

    def _fault(self, node: KnownNode, fault: messages.Fault) -> None:
        """Handle a node's report that it cannot run ranks; a generation in which it has ranks is closed, except if a
        device has failed and the other ranks can continue without the node.

        A node whose disk is full or refuses writes stays usable; any other is excluded. A fault of the user's setup, or
        of a port that another process uses, ends the run if it comes before the first generation.
        """
        attempt = self._attempt
        if fault.disk:
            self._disk_failed(node, fault.text)
            return
        if fault.unfit:
            self._watch.leave_out(node, fault.text)
            return
        node.fault = fault.text
        cause = Cause.USER_ERROR if fault.setup else Cause.LAUNCHER_FAULT
        where = ("run.setup" if fault.log else "run.python") if fault.setup else None
        found = Verdict(cause, fault.text, node=node.index, where=where, log=fault.log or None)
        if (fault.setup or fault.port) and attempt.generation is None and attempt.phase is AttemptPhase.WAITING:
            self._aftermath.note_failure(found)
            self._aftermath.finish(State.FAILED, cause, exit_of(cause), fault.text)
            return
        text = f"node {node.index} is not used any more: {fault.text}"
        self._ledger.record("agent_fault", text, node=node.index, cause=cause)
        if attempt.is_open and node.holds == attempt.current.number and node.stale_agent is None:
            self._closer.close(found)

    def _disk_failed(self, node: KnownNode, text: str) -> None:
        """Record that the node's disk has failed, with the agent's `text` about it, and end the generation's ranks if
        some are on the node, so that another generation follows. The node may be used again, but others are preferred.
        """
        self._ledger.record("disk", text, node=node.index, cause=Cause.DISK)
        if self._attempt.joining is not None and node.index in self._attempt.joining.newcomers:
            node.suspected_at = self._ledger.mono
        if self._attempt.is_open and node.holds == self._attempt.current.number and node.stale_agent is None:
            self._closer.close(Verdict(Cause.DISK, text, node=node.index))

    def _stop_asked(self, message: messages.StopAsked) -> None:
        """Stop the attempt for the reason in the message, such as a preemption, after letting ranks save. If a stop was
        requested before, the message has no effect, unless it is the first that cancels the run.
        """
        attempt = self._attempt
        kind = message.kind if message.kind in verdict.STOPS else "preempt"
        if attempt.stop is not None and (kind != "cancel" or attempt.stop == "cancel"):
            return  # the first reason holds, unless a user cancels the run
        attempt.stop = kind
        self._ledger.record("stop_asked", verdict.STOPS[kind], node=message.node)
        if attempt.is_open:
            self._closer.close_gracefully(verdict.of_stop(kind), verdict.STOPS[kind])

    # -- time passes

    def _advance(self) -> None:
        """Close expired leases; then have the parts of the coordinator do what is due in the present phase, and again
        after each change of the phase.
        """
        for loss in [*self._attendance.expire_leases()]:  # first all: who takes their places is decided once
            self._lost(loss)
        while True:
            before = self._attempt.phase
            self._joiner.check()
            match before:
                case AttemptPhase.WAITING:
                    self._opener.open_if_ready()
                case AttemptPhase.STARTING | AttemptPhase.RUNNING | AttemptPhase.COPYING:
                    self._watch.check()
                    self._drainer.check()
                case AttemptPhase.CLOSING:
                    self._closer.await_closed()
                case AttemptPhase.OVER:
                    return
                case _:
                    assert_never(before)
            if self._attempt.phase is before:
                return
