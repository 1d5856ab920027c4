"""The coordinator: a pure state machine over (event, now) that decides generations. No clock, no socket, no disk.

    WAITING ──enough nodes, delay over──► STARTING ──all Started──► RUNNING ──all ranks finished──► OVER
       ▲                                     │                         │
       │                                     └── failure, loss, stop ──┤     (disks apart: first COPYING, till Settled)
       └──────── policy: regroup ◄── CLOSING (Stop sent, Stopped or lost awaited) ◄──┘    policy: requeue, end ──► OVER

Closing a generation and opening the next are separate steps with the recovery policy between them.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from enum import Enum, auto
from math import inf
from typing import assert_never

from launcher.agent import messages
from launcher.agent.coordination import verdict
from launcher.agent.coordination.attendance import Attendance, Loss
from launcher.agent.coordination.effects import Disconnected, In, Now, Out, ProvenDead, Tick
from launcher.agent.coordination.gathering import Gathering
from launcher.agent.coordination.generation import Generation, Rank
from launcher.agent.coordination.ledger import Ledger
from launcher.agent.coordination.nodes import KnownNode, Nodes, Presence
from launcher.agent.coordination.pace import Pace
from launcher.agent.coordination.placement import place, replicas, starts
from launcher.agent.coordination.snapshot import Standing, run_state
from launcher.agent.coordination.verdict import Verdict
from launcher.errors import Exit
from launcher.plan.model import Plan
from launcher.recovery.classify import classify, failed, fenced
from launcher.recovery.policy import decide, restarts_by_cause
from launcher.rundir.records import AttemptEnd, Event, RankExit, RunState
from launcher.words import Action, Cause, State, exit_of

BLAME_S = 1.0  # how long a rank that lost its peer waits for the news of who that was
START_S = 120.0  # from Start, or from news of a checkpoint being fetched, to Started, of a node that is heard
CLOSE_S = 30.0  # from Stop with no grace to Stopped, of a node that is heard all the while
AFTER_GRACE_S = 10.0  # beyond the grace
FRESH_S = 3.0  # nobody is called hung while some node has not been heard for longer than that


class AttemptPhase(Enum):
    WAITING = auto()
    STARTING = auto()
    RUNNING = auto()
    COPYING = auto()  # disks apart: all ranks have finished, their last checkpoint lies on one disk only
    CLOSING = auto()
    OVER = auto()


_STOPS = {
    "cancel": "somebody cancelled the run",
    "preempt": "the cluster takes the nodes back",
    "limit": "the time limit of the cluster's job is near",
}
_OPEN = (AttemptPhase.STARTING, AttemptPhase.RUNNING, AttemptPhase.COPYING)


@dataclass(slots=True)
class _Closing:
    verdict: Verdict | None  # None: to be found among the exits
    graceful: bool  # the attempt ends with it
    grace_s: float
    waits: set[int]  # nodes that may still have processes of the generation
    gives_up_at: float


class Coordinator:
    """`handle` every message and every Tick at `next_deadline`; carry out, in order, what it gives back."""

    def __init__(
        self,
        plan: Plan,
        attempt: int,
        history: Sequence[Event],
        now: Now,
        job: str | None = None,
        used_s: float = 0.0,
    ) -> None:
        self._plan = plan
        self._rules = plan.spec.recovery
        self._history = [event for event in history if event.kind in ("failure", "resumed")]
        self._nodes = Nodes(plan.nodes, self._rules.lease_s)
        self._pace = _pace_of(self._history)
        self._standing = Standing(attempt, restarts=restarts_by_cause(history, attempt), job=job)
        self._standing.used_s, self._standing.began_at = used_s, now.mono
        self._standing.started_at = next((event.at for event in history if event.kind == "generation_opened"), None)
        if self._history and self._history[-1].kind == "failure":
            self._standing.failure = verdict.failure_of(self._history[-1])
        self._ledger = Ledger(attempt, self._pace, now)
        self._attendance = Attendance(self._nodes, self._rules.lease_s, self._ledger)
        self._phase = AttemptPhase.WAITING
        self._generation: Generation | None = None
        self._closing: _Closing | None = None
        self._stop: str | None = None  # cancel, preempt or limit, once somebody asked
        self._fenced = ""  # which rank found a newer start of the run
        self._gathering = Gathering(plan, self._nodes, now.mono, now.mono, first=True)
        self._start_by = inf
        self._blame_at = inf
        self._look_for_hang_at = 0.0
        limit_s = None if plan.limit_per_job else plan.spec.resources.time_s  # the cluster tells when it is near
        self._limit_at = inf if limit_s is None else now.mono + limit_s - used_s
        self._standing.message = str(self._gathering)

    # -- the face to the shell

    def handle(self, event: In, now: Now) -> list[Out]:
        """Take in one event; gives what is to be done, in order."""
        if self._phase is AttemptPhase.OVER:
            return []
        self._ledger.turn(now)
        match event:
            case Tick():
                pass  # whatever is due is done below
            case Disconnected():
                self._attendance.disconnect(event.node)
            case ProvenDead():
                for loss in self._attendance.bury(event):
                    self._lost(loss)
            case messages.Join():
                self._joined(event)
            case _:
                self._heard(event)
        self._advance()
        return self._ledger.out

    def next_deadline(self) -> float | None:
        """The `mono` of the next Tick that is needed."""
        moments = [self._nodes.look_at, self._limit_at, *self._phase_moments()]
        soonest = min((moment for moment in moments if moment > self._ledger.mono), default=inf)
        return None if soonest == inf or self._phase is AttemptPhase.OVER else soonest

    def snapshot(self, now: Now) -> RunState:
        """What there is to know at this moment."""
        stopping = self._phase is AttemptPhase.CLOSING
        return run_state(self._plan, self._standing, self._nodes, self._generation, self._pace, stopping, now)

    def _phase_moments(self) -> list[float]:
        match self._phase:
            case AttemptPhase.WAITING:
                return self._gathering.moments()
            case AttemptPhase.STARTING:
                return [self._start_by, self._blame_at]
            case AttemptPhase.RUNNING:
                return [self._blame_at]
            case AttemptPhase.COPYING:
                return []
            case AttemptPhase.CLOSING:
                return [self._closing.gives_up_at if self._closing else inf]
            case AttemptPhase.OVER:
                return []
            case _:
                assert_never(self._phase)

    # -- nodes come and go

    def _joined(self, join: messages.Join) -> None:
        arrival = self._attendance.arrive(join)
        if arrival is None:
            return
        if arrival.loss is not None:
            self._lost(arrival.loss)
        self._sort_out_ranks(arrival.node, join.generation, arrival.carries_on)
        self._nodes.settle(arrival.node)

    def _sort_out_ranks(self, node: KnownNode, claimed: int, carries_on: bool) -> None:
        """An agent that comes back goes on with the open generation, or has to stop whatever it may still run."""
        generation = self._generation
        member = generation is not None and self._phase in _OPEN and node.holds == generation.number
        if generation is not None and member and carries_on and claimed == generation.number:
            generation.returned.add(node.index)
            if generation.led:
                self._ledger.send(node.index, messages.Follow(generation.number))
            return
        if node.ghost is not None:
            return  # what the node holds is the ghost's, and the new agent cannot stop it
        node.holds = max(node.holds, claimed)
        if member:
            text = f"the agent of node {node.index} came back without its ranks"
            self._close(Verdict(Cause.NODE_LOST, text, node=node.index))
        elif node.holds:
            grace_s = self._closing.grace_s if self._closing else 0.0
            self._ledger.send(node.index, messages.Stop(node.holds, grace_s))

    def _lost(self, loss: Loss) -> None:
        """No rank is left there; if it had some of the open generation, that one cannot go on."""
        generation = self._generation
        if generation is None or loss.held != generation.number:
            return
        if self._phase is AttemptPhase.COPYING and generation.has_settled(loss.node):
            self._nodes[loss.node].holds = 0  # its ranks have ended, and what it had to give is on another disk
            return
        generation.lose(loss.node)
        found = Verdict(Cause.NODE_LOST, loss.text, node=loss.node, evidence=loss.evidence)
        if self._phase in _OPEN:
            self._close(found)
        elif self._closing is not None:
            self._closing.waits.discard(loss.node)
            if self._closing.verdict is None and _only_peers(generation):
                self._closing.verdict = found  # its peers noticed before we did

    # -- messages of nodes that have joined

    def _heard(self, message: messages.ToCoordinator) -> None:
        node = self._nodes.get(message.node)
        if isinstance(message, messages.Pulse) and node is not None:
            self._ledger.send(node.index, messages.PulseAck(message.seq))
        if node is None or node.process is None:
            return
        if self._attendance.hear(node) and node.holds:
            self._ledger.send(node.index, messages.Stop(node.holds, 0.0))
        match message:
            case messages.Ready():
                node.ready = True
            case messages.Leads() | messages.Started() | messages.Pulse() | messages.Exited() | messages.Stopped():
                self._of_ranks(node, message)
            case messages.Fault():
                self._fault(node, message)
            case messages.StopAsked():
                self._stop_asked(message)
            case messages.NotFetched() | messages.Copied() | messages.Settled() | messages.Noted():
                self._of_checkpoints(message)
            case messages.Join():
                raise AssertionError("a Join has a way of its own")
            case _:
                assert_never(message)
        if not isinstance(message, messages.Pulse):
            self._nodes.settle(node)

    def _of_ranks(
        self,
        node: KnownNode,
        message: messages.Leads | messages.Started | messages.Pulse | messages.Exited | messages.Stopped,
    ) -> None:
        match message:
            case messages.Leads():
                self._led(message)
            case messages.Started():
                self._started(node, message)
            case messages.Pulse():
                self._pulse(message)
            case messages.Exited():
                self._exited(message)
            case messages.Stopped():
                self._stopped(node, message)
            case _:
                assert_never(message)

    def _led(self, message: messages.Leads) -> None:
        if self._phase is not AttemptPhase.STARTING or not self._is_current(message.generation) or self._current.led:
            return
        self._current.led = True
        for index in self._current.members:
            if index != message.node and self._nodes[index].hears_us:
                self._ledger.send(index, messages.Follow(message.generation))

    def _started(self, node: KnownNode, message: messages.Started) -> None:
        node.port = message.port
        if self._is_current(message.generation) and node.index in self._current.starting:
            self._current.start(node.index, message.pids)
            self._all_started()

    def _all_started(self) -> None:
        if self._phase is AttemptPhase.STARTING and not self._current.starting:
            self._phase = AttemptPhase.RUNNING
            self._standing.state, self._standing.message = State.RUNNING, ""

    def _pulse(self, pulse: messages.Pulse) -> None:
        if not self._is_current(pulse.generation):
            return
        generation = self._current
        self._pace.hear(generation.hear(pulse, self._ledger.mono), self._ledger.mono)
        if (
            pulse.fetched is not None
            and self._phase is AttemptPhase.STARTING
            and generation.fetch(pulse.node, pulse.fetched)
        ):
            self._start_by = self._ledger.mono + START_S
            megabytes = sum(generation.fetched.values()) / 1e6
            self._standing.message = f"generation {generation.number} fetches its checkpoint, {megabytes:.0f} MB so far"
        if pulse.node in generation.returned:
            self._catch_up(pulse)
        if self._phase is AttemptPhase.RUNNING and generation.stalls(pulse.node):
            self._check_hang()

    def _catch_up(self, pulse: messages.Pulse) -> None:
        """After a cut the pulse tells what messages were lost in it."""
        if pulse.ranks and pulse.node in self._current.starting:
            self._current.start(pulse.node, ())
            self._all_started()
        if pulse.node in self._current.starting:
            return
        for rank in self._current.unaccounted(pulse):
            self._rank_ended(messages.Exited(pulse.node, verdict.unseen_end(self._current, rank)))

    def _exited(self, message: messages.Exited) -> None:
        if self._is_current(message.exit.generation) and message.exit.node == message.node:
            self._rank_ended(message)

    def _rank_ended(self, message: messages.Exited) -> None:
        generation, end = self._current, message.exit
        if not generation.end(end, message.tail):
            return
        self._ledger.record_exit(end)
        if fenced(end):
            self._fenced = f"fenced: rank {end.rank} on node {end.node} found that a newer start of this run took over"
        if self._phase not in _OPEN:
            return
        if generation.finished:
            self._finished()
        elif fenced(end) or _by_itself(end) or (generation.failures and not generation.live):
            self._close()
        elif generation.failures:
            self._blame_at = min(self._blame_at, self._ledger.mono + BLAME_S)

    def _finished(self) -> None:
        """Nothing is left to train; until the result survives the loss of any one disk, the run is not over."""
        done = "all ranks have finished"
        if not self._plan.disks_apart or self._current.settled:
            alone = "".join(f"; {problem}" for problem in self._current.uncopied)
            self._finish(State.SUCCEEDED, None, Exit.OK, done + alone)
        elif self._phase is not AttemptPhase.COPYING:
            self._phase = AttemptPhase.COPYING
            self._standing.state = State.RUNNING
            self._standing.message = f"{done}; their last checkpoint gets its second copies"

    def _stopped(self, node: KnownNode, message: messages.Stopped) -> None:
        if node.ghost is not None or message.generation < node.holds:
            return
        if self._phase in _OPEN and node.holds == self._current.number:
            text = f"node {node.index} ended its ranks without having been asked to"
            self._close(Verdict(Cause.LAUNCHER_FAULT, text, node=node.index))
        node.holds = 0
        if self._closing is not None:
            self._closing.waits.discard(node.index)

    def _fault(self, node: KnownNode, fault: messages.Fault) -> None:
        node.fault = fault.text
        cause = Cause.USER_ERROR if fault.setup else Cause.LAUNCHER_FAULT
        found = Verdict(cause, fault.text, node=node.index, where="run.setup" if fault.setup else None, log=fault.log)
        if fault.setup and self._generation is None and self._phase is AttemptPhase.WAITING:
            self._note_failure(found)
            self._finish(State.FAILED, cause, exit_of(cause), fault.text)
            return
        text = f"node {node.index} is not used any more: {fault.text}"
        self._ledger.record("agent_fault", text, node=node.index, cause=cause)
        if self._phase in _OPEN and node.holds == self._current.number and node.ghost is None:
            self._close(found)

    def _of_checkpoints(
        self, message: messages.NotFetched | messages.Copied | messages.Settled | messages.Noted
    ) -> None:
        """Disks apart: what agents do with the files."""
        match message:
            case messages.Noted():
                self._ledger.record(message.kind, message.text, node=message.node)
            case messages.Copied() if self._is_current(message.generation):
                self._current.copy(message.node, message.step)
            case messages.Settled() if self._is_current(message.generation):
                self._current.settle(message.node, message.problem)
                if self._phase is AttemptPhase.COPYING:
                    self._finished()
            case messages.NotFetched() if self._is_current(message.generation) and self._phase is AttemptPhase.STARTING:
                text = f"node {message.node} could not fetch its checkpoint: {message.text}"
                self._close(Verdict(Cause.COMMUNICATION, text, node=message.node))  # the next generation looks again

    # -- being told to stop

    def _stop_asked(self, message: messages.StopAsked) -> None:
        kind = message.kind if message.kind in _STOPS else "preempt"
        if self._stop is not None and (kind != "cancel" or self._stop == "cancel"):
            return  # the first reason holds, unless a person does not want the run to go on
        self._stop = kind
        text = _STOPS[kind]
        self._ledger.record("stop_asked", text, node=message.node)
        if self._phase in _OPEN:
            self._close(self._stop_verdict(), graceful=True)
            self._standing.message = self._with_grace(text)

    def _with_grace(self, text: str) -> str:
        return f"{text}; ranks have {self._rules.grace_s:g} s to stop" if self._current.live else text

    def _stop_verdict(self) -> Verdict:
        if self._stop == "cancel":
            return Verdict(Cause.CANCELLED, "cancelled")
        if self._stop == "limit":
            return Verdict(Cause.TIME_LIMIT, _STOPS["limit"])
        return Verdict(Cause.PREEMPTED, f"preempted: {_STOPS['preempt']}")

    def _limit_verdict(self) -> Verdict:
        return Verdict(Cause.TIME_LIMIT, f"the time limit of {self._plan.spec.resources.time_s:g} s is reached")

    def _is_out_of_time(self, found: Verdict) -> bool:
        """The run has had all the time that its spec gives it: no attempt of any budget could go on."""
        return found.cause is Cause.TIME_LIMIT and self._ledger.mono >= self._limit_at

    # -- time passes

    def _advance(self) -> None:
        """Do what is due, until nothing is."""
        for loss in self._attendance.run_out_leases():
            self._lost(loss)
        while True:
            before = self._phase
            match self._phase:
                case AttemptPhase.WAITING:
                    self._wait()
                case AttemptPhase.STARTING | AttemptPhase.RUNNING | AttemptPhase.COPYING:
                    self._watch()
                case AttemptPhase.CLOSING:
                    self._await_closed()
                case AttemptPhase.OVER:
                    return
                case _:
                    assert_never(self._phase)
            if self._phase is before:
                return

    def _watch(self) -> None:
        mono = self._ledger.mono
        if mono >= self._limit_at:
            self._close(self._limit_verdict(), graceful=True)
            self._standing.message = self._with_grace("the time limit is reached")
        elif mono >= self._blame_at:
            self._close()
        elif self._phase is AttemptPhase.STARTING and mono >= self._start_by:
            self._start_timed_out()

    def _start_timed_out(self) -> None:
        generation = self._current
        waited_for = sorted(generation.starting) if generation.led else generation.members[:1]
        late = [node for node in map(self._nodes.__getitem__, waited_for) if node.hears_us]
        self._start_by = self._ledger.mono + START_S
        if not late:
            return  # unknown ones have a lease that ends
        for node in late:
            self._exclude(node, f"no rank was started within {START_S:g} s")
        text = f"node {late[0].index} started no rank within {START_S:g} s"
        self._close(Verdict(Cause.LAUNCHER_FAULT, text, node=late[0].index))

    def _exclude(self, node: KnownNode, why: str) -> None:
        node.fault = why
        text = f"node {node.index} is not used any more: {why}"
        self._ledger.record("agent_fault", text, node=node.index, cause=Cause.LAUNCHER_FAULT)
        self._nodes.settle(node)

    def _check_hang(self) -> None:
        mono = self._ledger.mono
        if mono < self._look_for_hang_at:
            return
        self._look_for_hang_at = mono + 0.5
        if not all(self._is_fresh(self._nodes[index]) for index in self._current.members):
            return  # whoever is silent there may be the reason; its lease will tell
        suspects = self._current.suspects(mono)
        if suspects:
            found = verdict.of_hang(self._current, suspects, mono)
            self._close(found, hung=suspects)

    def _is_fresh(self, node: KnownNode) -> bool:
        return node.hears_us and node.heard_at >= self._ledger.mono - FRESH_S

    # -- closing a generation

    def _close(self, found: Verdict | None = None, *, graceful: bool = False, hung: Collection[Rank] = ()) -> None:
        """Have every process of the generation ended, and wait until it is."""
        generation = self._current
        grace_s = self._rules.grace_s if graceful else 0.0
        gives_up_at = self._ledger.mono + (grace_s + AFTER_GRACE_S if graceful else CLOSE_S)
        holders = [self._nodes[index] for index in generation.members]
        holders = [node for node in holders if node.holds == generation.number and node.link is not Presence.LOST]
        self._phase = AttemptPhase.CLOSING
        self._closing = _Closing(found, graceful, grace_s, {node.index for node in holders}, gives_up_at)
        self._start_by = self._blame_at = inf
        for node in holders:
            if node.hears_us:
                dump = tuple(sorted(rank.number for rank in hung if rank.node == node.index))
                self._ledger.send(node.index, messages.Stop(generation.number, grace_s, dump))
        if not graceful:
            self._standing.state = State.REGROUPING
            why = found or verdict.of_exits(generation, False)
            self._standing.message = self._fenced or why.text

    def _await_closed(self) -> None:
        closing = self._closing
        if closing is None:
            return
        if closing.waits and self._ledger.mono >= closing.gives_up_at:
            closing.gives_up_at = self._ledger.mono + CLOSE_S
            for node in [self._nodes[index] for index in sorted(closing.waits)]:
                if node.hears_us:
                    self._exclude(node, "it did not end its ranks in time")
                    closing.waits.discard(node.index)
            if closing.graceful:
                closing.waits.clear()  # the attempt ends: whoever is left hears End, or reaches the end of its lease
        if not closing.waits:
            self._closed(closing)

    def _closed(self, closing: _Closing) -> None:
        generation = self._current
        self._phase, self._closing = AttemptPhase.WAITING, None
        if closing.graceful and self._stop != "cancel" and generation.finished:
            self._finish(State.SUCCEEDED, None, Exit.OK, "all ranks have finished")
            return
        found = closing.verdict or verdict.of_exits(generation, self._stop is not None)
        if self._stop == "cancel":
            if not closing.graceful:
                self._note_failure(found)
            self._cancelled()
        elif self._fenced:
            self._end_fenced()
        else:
            self._fail(found, can_regroup=not closing.graceful and self._stop is None and self._can_regroup())

    def _can_regroup(self) -> bool:
        mono = self._ledger.mono
        return Gathering(self._plan, self._nodes, mono, mono, first=False).may_succeed(mono)

    # -- the policy, and what it decides

    def _note_failure(self, found: Verdict) -> Event:
        event = self._ledger.record(
            "failure",
            found.text,
            node=found.node,
            rank=found.rank,
            cause=found.cause,
            where=found.where,
            evidence=found.evidence,
        )
        log, tail = found.log, tuple[str, ...]()
        if self._generation is not None and found.rank is not None:
            log, tail = self._generation.last_words(found.rank)
        self._standing.failure = verdict.failure_of(event, log, tail)
        return event

    def _fail(self, found: Verdict, *, can_regroup: bool) -> None:
        event = self._note_failure(found)
        decision = decide(event, self._history, self._rules, can_regroup=can_regroup)
        self._history.append(event)
        if decision.action is Action.END or self._is_out_of_time(found):
            self._finish(State.FAILED, decision.cause, exit_of(decision.cause), decision.reason)
            return
        restarts = self._standing.restarts
        restarts[found.cause.value] = restarts.get(found.cause.value, 0) + 1
        wait = f" in {decision.delay_s:g} s" if decision.delay_s else ""
        if decision.action is Action.REQUEUE:
            text = f"a new attempt follows{wait}: {decision.reason}"
            self._finish(State.QUEUED, decision.cause, exit_of(decision.cause), text, decision.delay_s)
            return
        self._ledger.record("regroup", f"a new generation follows{wait}: {decision.reason}", cause=found.cause)
        self._standing.state = State.REGROUPING
        self._standing.message = f"{event.text}; a new generation follows{wait}: {decision.reason}"
        mono = self._ledger.mono
        self._gathering = Gathering(self._plan, self._nodes, mono, mono + decision.delay_s, first=False)

    def _end_fenced(self) -> None:
        """No failure: it uses up no budget. Where the newer start is an attempt, the shell refuses to write this."""
        self._finish(State.FAILED, None, Exit.FENCED, self._fenced)

    def _cancelled(self) -> None:
        self._finish(State.CANCELLED, Cause.CANCELLED, Exit.CANCELLED, "cancelled")

    def _finish(self, state: State, cause: Cause | None, code: Exit, text: str, delay_s: float = 0.0) -> None:
        self._phase = AttemptPhase.OVER
        self._standing.end = AttemptEnd(state, cause, int(code), self._ledger.now.wall, text, delay_s)
        self._ledger.record("requeue" if state is State.QUEUED else "ended", text, cause=cause)
        for node in self._nodes:
            if node.link is Presence.UP:
                self._ledger.send(node.index, messages.End(text, goes_on=state is State.QUEUED))
        self._ledger.finish(self._standing.end)

    # -- opening a generation

    def _wait(self) -> None:
        """No generation is open: stop here, open one, or see that none can be."""
        if self._stop == "cancel":
            self._cancelled()
        elif self._fenced:
            self._end_fenced()
        elif self._stop is not None:
            self._fail(self._stop_verdict(), can_regroup=False)
        elif self._ledger.mono >= self._limit_at:
            self._fail(self._limit_verdict(), can_regroup=False)
        elif not self._gathering.may_succeed(self._ledger.mono):
            self._fail(self._gathering.shortage(), can_regroup=False)
        elif self._gathering.complete(self._ledger.mono):
            self._open()
        elif self._generation is None:
            self._standing.message = str(self._gathering)

    def _open(self) -> None:
        before = self._generation
        usable = [self._nodes[index] for index in self._nodes.usable]
        members = place(before.members if before else (), usable, self._plan.nodes_max)
        number = before.number + 1 if before else 1
        rules, ranks_each = self._rules, self._plan.ranks_per_node
        self._generation = Generation(number, members, ranks_each, rules.hang_after_s, self._ledger.mono)
        self._phase, self._start_by, self._blame_at = AttemptPhase.STARTING, self._ledger.mono + START_S, inf
        self._pace.restart()
        self._standing.started_at = self._standing.started_at or self._ledger.now.wall
        self._standing.message = f"generation {number} starts"
        nodes = ", ".join(map(str, members)) if len(members) <= 8 else f"{len(members)} of them"
        self._ledger.generation, self._ledger.opened_at = number, self._ledger.mono
        text = f"generation {number}: {len(self._generation.ranks)} ranks on node {nodes}"
        self._ledger.record("generation_opened", text)
        restarts = sum(self._standing.restarts.values())
        chosen = [self._nodes[index] for index in members]
        everywhere = replicas(chosen, self._nodes) if self._plan.disks_apart else ()
        for index, start in starts(number, chosen, ranks_each, restarts, everywhere):
            node = self._nodes[index]
            node.holds = number
            self._nodes.settle(node)
            self._ledger.send(index, start)

    # -- small questions

    @property
    def _current(self) -> Generation:
        if self._generation is None:
            raise AssertionError("no generation has been opened")
        return self._generation

    def _is_current(self, number: int) -> bool:
        return self._generation is not None and number == self._generation.number


def _by_itself(end: RankExit) -> bool:
    """It failed, and not for the loss of a peer."""
    return failed(end) and classify(end) is not Cause.COMMUNICATION


def _only_peers(generation: Generation) -> bool:
    """True where no rank failed by itself."""
    return all(end.stopping or classify(end) is Cause.COMMUNICATION for end in generation.failures)


def _pace_of(history: Sequence[Event]) -> Pace:
    steps = [event.step for event in history if event.step is not None]
    checkpoints = [event.checkpoint for event in history if event.checkpoint is not None]
    return Pace(steps[-1] if steps else None, max(checkpoints, default=None))
