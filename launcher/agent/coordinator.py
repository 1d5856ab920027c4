"""Who runs what, when, and what follows a failure: a state machine over (event, now), with no clock and no socket.

    GATHERING ─ enough nodes ─► OPEN ─ failure, hang, node lost, stop, time ─► CLOSING ─ all Stopped ─► policy
        ▲                        │ all ranks done                                                        │
        │                        ▼                                                    REGROUP (after a pause) │ REQUEUE, END
        └──────────────────────────────────────────────────────────────────────────────────────┘         ▼
                               ENDED ◄─────────────────────────────────────────────────────────────────────

Closing and opening are two steps with the policy between them, so that a generation could also be left without its
survivors being stopped.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum, auto
from typing import NamedTuple, assert_never

import msgspec

from launcher.agent import messages
from launcher.agent.board import Board
from launcher.agent.roster import Node, Roster
from launcher.errors import Exit
from launcher.plan.model import Plan
from launcher.recovery.classify import classify, culprit, describe
from launcher.recovery.policy import Decision, decide, restarts_by_cause
from launcher.rundir.identity import boot_id
from launcher.rundir.records import AttemptEnd, Event, Failure, RankExit, RunState
from launcher.words import Action, Cause, State, exit_of

BLAME_S = 1.0  # how long a failure that looks like another's fault waits for the other to show
START_S = 300.0  # how long a node that is heard may take from Start to Started
CLOSE_S = 30.0  # how long, beyond the grace, a node that is heard may take from Stop to Stopped


class Now(NamedTuple):
    """Two clocks: `mono` decides, `wall` is for people."""

    mono: float
    wall: float


class Disconnected(msgspec.Struct, frozen=True):
    """A node's connection is gone; the node may be alive."""

    node: int


class ProvenDead(msgspec.Struct, frozen=True):
    """Somebody who can tell says that the agent is gone."""

    node: int
    evidence: str


class Tick(msgspec.Struct, frozen=True):
    """The moment that `next_deadline` named has come."""


class Send(msgspec.Struct, frozen=True):
    node: int
    message: messages.ToAgent


class Record(msgspec.Struct, frozen=True):
    event: Event


class RecordExit(msgspec.Struct, frozen=True):
    exit: RankExit


class Finish(msgspec.Struct, frozen=True):
    end: AttemptEnd


In = messages.ToCoordinator | Disconnected | ProvenDead | Tick
Out = Send | Record | RecordExit | Finish


class Phase(Enum):
    GATHERING = auto()
    OPEN = auto()
    CLOSING = auto()
    PAUSED = auto()
    ENDED = auto()


@dataclass(slots=True)
class Closing:
    """Why a generation is being closed."""

    cause: Cause
    text: str
    rank: int | None = None
    node: int | None = None
    where: str | None = None
    log: str | None = None
    tail: tuple[str, ...] = ()
    evidence: str = ""


class Coordinator:
    """See the module. `handle` mutates and gives the effects, in order."""

    def __init__(self, plan: Plan, attempt: int, history: Sequence[Event], now: Now) -> None:
        self._plan = plan
        self._rules = plan.spec.recovery
        self._attempt = attempt
        self._history = list(history)
        self._roster = Roster(plan, now.mono)
        self._board = Board()
        self._board.checkpoint = max((event.checkpoint for event in history if event.checkpoint is not None), default=None)
        self._phase = Phase.GATHERING
        self._began = now
        self._started_at = next((event.at for event in history if event.kind == "generation_opened"), None)
        self._phase_until = now.mono + self._rules.wait_s
        self._generation = max((event.generation for event in history if event.attempt == attempt), default=0)
        self._opened_at = now.mono
        self._members: dict[int, tuple[int, ...]] = {}
        self._closing: Closing | None = None
        self._closing_until = 0.0
        self._blame_until: float | None = None
        self._ends: list[tuple[RankExit, tuple[str, ...]]] = []
        self._stop_kind: str | None = None
        self._failure: Failure | None = None
        self._end: AttemptEnd | None = None
        self._message = "waiting for agents"
        self._out: list[Out] = []

    # -- in and out

    def handle(self, event: In, now: Now) -> list[Out]:
        """Take in one event; gives the effects that it has."""
        if self._phase is not Phase.ENDED:
            self._take(event, now)
            self._advance(now)
        out, self._out = self._out, []
        return out

    def next_deadline(self) -> float | None:
        """When a Tick is due, if nothing else happens before."""
        if self._phase is Phase.ENDED:
            return None
        times = [node.heard_at + self._rules.lease_s for node in self._roster.nodes if self._roster.owes_word(node)]
        if self._phase in (Phase.GATHERING, Phase.PAUSED):
            times.append(self._phase_until)
        if self._phase is Phase.CLOSING:
            times.append(self._closing_until)
        if self._phase is Phase.OPEN:
            times += self._open_deadlines()
        if self._plan.spec.resources.time_s is not None and self._phase is not Phase.CLOSING:
            times.append(self._began.mono + self._plan.spec.resources.time_s)
        return min(times, default=None)

    def _open_deadlines(self) -> list[float]:
        times = [] if self._blame_until is None else [self._blame_until]
        if any(view.pid is None and view.live for view in self._board.ranks.values()):
            times.append(self._opened_at + START_S)
        return times

    # -- events

    def _take(self, event: In, now: Now) -> None:
        match event:
            case messages.Join():
                self._join(event, now)
            case messages.Ready(node=index):
                self._roster[index].ready = True
            case messages.Started():
                self._take_started(event)
            case messages.Pulse():
                self._take_pulse(event, now)
            case messages.Exited():
                self._take_exit(event, now)
            case messages.Stopped(node=index, generation=generation):
                if self._roster[index].busy_with <= generation:
                    self._roster[index].busy_with = 0
            case messages.Fault():
                self._take_fault(event, now)
            case messages.StopAsked(kind=kind):
                self._ask_to_stop(kind, now)
            case Disconnected(node=index):
                self._roster[index].connected = False
                self._roster[index].ready = False
            case ProvenDead(node=index, evidence=evidence):
                self._lose(self._roster[index], evidence, now)
            case Tick():
                pass
            case _:
                assert_never(event)
        if not isinstance(event, Disconnected | ProvenDead | Tick):
            self._roster[event.node].heard_at = now.mono

    def _join(self, join: messages.Join, now: Now) -> None:
        node = self._roster[join.node]
        returned = node.lost
        node.connected, node.lost, node.ready = True, False, False
        node.address, node.port = join.address, join.port
        self._send(node, messages.Welcome(self._rules.lease_s))
        if join.generation and (join.generation != self._generation or self._phase is not Phase.OPEN or returned):
            node.busy_with = join.generation
            self._send(node, messages.Stop(join.generation, 0.0))
        elif not join.generation and node.busy_with:
            # A new agent in place of one that had ranks: they died with it.
            generation, node.busy_with = node.busy_with, 0
            if self._phase is Phase.OPEN and generation == self._generation:
                self._record(now, "agent_lost", f"the agent of node {node.index} was replaced", node=node.index)
                self._close(Closing(Cause.NODE_LOST, f"node {node.index} was lost", node=node.index), 0.0, now)
        word = "returned" if returned else "joined"
        self._record(now, "agent_joined", f"node {node.index} {word} from {join.address}", node=node.index)

    def _take_started(self, started: messages.Started) -> None:
        node = self._roster[started.node]
        node.port = started.port
        if started.generation == self._generation:
            for rank, pid in zip(self._members.get(started.node, ()), started.pids, strict=False):
                self._board.ranks[rank].pid = pid

    def _take_pulse(self, pulse: messages.Pulse, now: Now) -> None:
        self._send(self._roster[pulse.node], messages.PulseAck(pulse.seq))
        if pulse.generation != self._generation or self._phase not in (Phase.OPEN, Phase.CLOSING):
            return
        for one in pulse.ranks:
            self._board.take(one, now.mono)
        if self._phase is Phase.OPEN and self._rules.hang_after_s is not None:
            hung = self._board.hung(self._rules.hang_after_s)
            if hung:
                self._close_hung([view.rank for view in hung], now)

    def _close_hung(self, ranks: list[int], now: Now) -> None:
        view = self._board.ranks[ranks[0]]
        steps = ", ".join(f"rank {rank}: step {_step(self._board.ranks[rank].pulse)}" for rank in sorted(ranks)[:16])
        frozen = view.pulse is not None and view.pulse.frozen
        text = f"rank {view.rank} on node {view.node} hung: no progress and no output for {self._rules.hang_after_s:g} s"
        log = f"logs/a{self._attempt:04d}.g{self._generation:04d}/rank-{view.rank:05d}.log"
        evidence = ("the process is stopped; " if frozen else "") + steps
        self._close(Closing(Cause.HANG, text, view.rank, view.node, log=log, evidence=evidence), 0.0, now, tuple(ranks))

    def _take_exit(self, exited: messages.Exited, now: Now) -> None:
        self._out.append(RecordExit(exited.exit))
        end = exited.exit
        view = self._board.ranks.get(end.rank)
        if end.generation != self._generation or view is None or not view.live:
            return
        view.end = end
        if self._phase is Phase.CLOSING and self._closing is not None and self._closing.rank == end.rank and exited.tail:
            self._closing.tail = exited.tail
        if end.done or end.code == 0 or self._phase is not Phase.OPEN:
            return
        self._ends.append((end, exited.tail))
        if classify(end) is not Cause.COMMUNICATION or not self._board.live():
            self._blame_until = now.mono
        elif self._blame_until is None:
            self._blame_until = now.mono + BLAME_S

    def _take_fault(self, fault: messages.Fault, now: Now) -> None:
        cause = Cause.USER_ERROR if fault.setup else Cause.LAUNCHER_FAULT
        closing = Closing(cause, fault.text, node=fault.node, log=fault.log, where="run.setup" if fault.setup else None)
        if fault.setup:
            # The same commands on the same code end the same way: no second try.
            self._finish_failed(closing, Decision(Action.END, 0.0, cause, fault.text), now)
        else:
            self._lose(self._roster[fault.node], fault.text, now)

    def _ask_to_stop(self, kind: str, now: Now) -> None:
        if self._stop_kind is None or (kind == "cancel" and self._stop_kind != "cancel"):
            first = self._stop_kind is None
            self._stop_kind = kind
            self._record(now, "stop_asked", f"asked to stop: {kind}")
            cause = Cause.CANCELLED if kind == "cancel" else Cause.PREEMPTED
            closing = Closing(cause, "cancelled" if kind == "cancel" else "preempted")
            if not first and self._closing is not None:
                self._closing = closing
            else:
                self._close(closing, self._rules.grace_s, now)

    def _lose(self, node: Node, evidence: str, now: Now) -> None:
        if node.lost:
            return
        had_ranks = node.busy_with != 0
        node.lost, node.connected, node.ready, node.busy_with = True, False, False, 0
        self._record(now, "agent_lost", f"node {node.index} is lost: {evidence}", node=node.index)
        if had_ranks and self._phase is Phase.OPEN:
            closing = Closing(Cause.NODE_LOST, f"node {node.index} was lost: {evidence}", node=node.index)
            self._close(closing, 0.0, now)

    # -- time

    def _advance(self, now: Now) -> None:
        """Everything that follows from what is known now."""
        for node in list(self._roster.silent(now.mono, self._rules.lease_s)):
            self._lose(node, f"not heard for {self._rules.lease_s:g} s", now)
        self._mind_the_time(now)
        if self._phase is Phase.OPEN:
            self._watch_open(now)
        if self._phase is Phase.CLOSING:
            self._watch_closing(now)
        if self._phase is Phase.PAUSED and now.mono >= self._phase_until:
            self._gather(now)
        if self._phase is Phase.GATHERING:
            self._watch_gathering(now)

    def _mind_the_time(self, now: Now) -> None:
        limit_s = self._plan.spec.resources.time_s
        if limit_s is not None and now.mono >= self._began.mono + limit_s and self._phase is not Phase.CLOSING:
            self._close(Closing(Cause.TIME_LIMIT, f"the time limit of {limit_s:g} s is over"), self._rules.grace_s, now)

    def _watch_open(self, now: Now) -> None:
        if self._blame_until is not None and now.mono >= self._blame_until:
            self._close_failed(now)
        elif not self._board.live():
            self._succeed(now)
        elif now.mono >= self._opened_at + START_S:
            late = [view.node for view in self._board.live() if view.pid is None]
            if late:
                text = f"node {late[0]} did not start its ranks within {START_S:g} s"
                self._close(Closing(Cause.LAUNCHER_FAULT, text, node=late[0]), 0.0, now)

    def _close_failed(self, now: Now) -> None:
        guilty = culprit([end for end, _ in self._ends])
        tail = next(tail for end, tail in self._ends if end is guilty)
        cause = classify(guilty)
        self._close(
            Closing(cause, describe(guilty, cause), guilty.rank, guilty.node, guilty.where, guilty.log, tail), 0.0, now
        )

    def _watch_closing(self, now: Now) -> None:
        for node in self._roster.nodes:
            if node.busy_with and node.connected and now.mono >= self._closing_until:
                self._lose(node, f"did not stop its ranks within {CLOSE_S:g} s", now)
        if not any(node.busy_with for node in self._roster.nodes):
            self._settle(now)

    def _watch_gathering(self, now: Now) -> None:
        if self._roster.complete() or (now.mono >= self._phase_until and self._roster.chosen()):
            self._open(now)
        elif now.mono >= self._phase_until:
            missing = [str(node.index) for node in self._roster.nodes if not node.usable and not node.spare]
            text = f"node {', '.join(missing[:8])} did not come within {self._rules.wait_s:g} s"
            self._decide(Closing(Cause.NODE_LOST, text), now)

    # -- generations

    def _gather(self, now: Now) -> None:
        self._phase = Phase.GATHERING
        self._phase_until = now.mono
        self._message = "waiting for agents"
        if not self._roster.chosen() and self._roster.enough_left():
            self._phase_until = now.mono + self._rules.wait_s

    def _open(self, now: Now) -> None:
        chosen, each = self._roster.chosen(), self._plan.ranks_per_node
        self._generation += 1
        self._phase = Phase.OPEN
        self._opened_at = now.mono
        self._started_at = self._started_at or now.wall
        self._blame_until, self._ends, self._closing, self._message = None, [], None, ""
        self._members = {node.index: tuple(range(at * each, (at + 1) * each)) for at, node in enumerate(chosen)}
        self._board.open({rank: index for index, ranks in self._members.items() for rank in ranks})
        for at, node in enumerate(chosen):
            node.busy_with = self._generation
            self._send(node, self._start(at, chosen))
        nodes = ", ".join(str(node.index) for node in chosen[:16])
        text = f"generation {self._generation}: {len(chosen) * each} ranks on node {nodes}"
        self._record(now, "generation_opened", text)

    def _start(self, at: int, chosen: list[Node]) -> messages.Start:
        each = self._plan.ranks_per_node
        return messages.Start(
            generation=self._generation,
            first_rank=at * each,
            local_world_size=each,
            world_size=each * len(chosen),
            group_rank=at,
            group_world_size=len(chosen),
            master_addr=chosen[0].address,
            master_port=chosen[0].port,
            restarts=sum(restarts_by_cause(self._history).values()),
        )

    def _close(self, closing: Closing, grace_s: float, now: Now, hung: tuple[int, ...] = ()) -> None:
        """Begin to end the open generation, or, where none is open, go on to what follows."""
        if self._phase is Phase.CLOSING:
            return
        self._closing = closing
        self._phase = Phase.CLOSING
        self._closing_until = now.mono + grace_s + CLOSE_S
        self._message = f"stopping ranks: {closing.text}"
        for node in self._roster.nodes:
            if node.busy_with and node.connected:
                mine = tuple(rank for rank in hung if rank in self._members.get(node.index, ()))
                self._send(node, messages.Stop(node.busy_with, grace_s, mine))

    def _settle(self, now: Now) -> None:
        """No process of the generation is left: what follows?"""
        closing = self._closing
        assert closing is not None
        finished = bool(self._board.ranks) and all(
            view.end is not None and (view.end.done or view.end.code == 0) for view in self._board.ranks.values()
        )
        if self._stop_kind == "preempt" and finished:
            self._succeed(now)
        elif closing.cause is Cause.CANCELLED:
            self._finish(AttemptEnd(State.CANCELLED, Cause.CANCELLED, Exit.CANCELLED, now.wall, "cancelled"), now)
        else:
            self._decide(closing, now)

    def _decide(self, closing: Closing, now: Now) -> None:
        past = [event for event in self._history if event.kind == "failure"]
        event = self._event(now, "failure", closing)
        can_regroup = self._roster.enough_left() and self._stop_kind is None
        decision = decide(event, past, self._rules, can_regroup=can_regroup)
        if decision.action is Action.END:
            self._finish_failed(closing, decision, now)
            return
        self._note_failure(closing, now)
        self._record(now, "restart", decision.reason, cause=closing.cause)
        if decision.action is Action.REQUEUE:
            message = f"{closing.text}; starting again"
            end = AttemptEnd(State.QUEUED, closing.cause, exit_of(closing.cause), now.wall, message, decision.delay_s)
            self._finish(end, now)
            return
        self._phase = Phase.PAUSED
        self._phase_until = now.mono + decision.delay_s
        pause = f" in {decision.delay_s:g} s" if decision.delay_s else ""
        self._message = f"restarting{pause}: {closing.text}"

    # -- ends

    def _succeed(self, now: Now) -> None:
        self._failure = None
        self._finish(AttemptEnd(State.SUCCEEDED, None, Exit.OK, now.wall, "all ranks have finished"), now)

    def _finish_failed(self, closing: Closing, decision: Decision, now: Now) -> None:
        self._note_failure(closing, now)
        end = AttemptEnd(State.FAILED, decision.cause, exit_of(decision.cause), now.wall, decision.reason)
        self._finish(end, now)

    def _note_failure(self, closing: Closing, now: Now) -> None:
        self._failure = Failure(
            cause=closing.cause, summary=closing.text, attempt=self._attempt, generation=self._generation,
            rank=closing.rank, node=closing.node, where=closing.where, log=closing.log, tail=closing.tail, at=now.wall,
        )  # fmt: skip
        self._put(self._event(now, "failure", closing))

    def _finish(self, end: AttemptEnd, now: Now) -> None:
        self._end = end
        self._phase = Phase.ENDED
        self._message = end.message
        self._record(now, "ended", f"{end.state}: {end.message}", cause=end.cause)
        self._out.append(Finish(end))
        for node in self._roster.nodes:
            self._send(node, messages.End(str(end.state)))

    # -- words

    def _send(self, node: Node, message: messages.ToAgent) -> None:
        if node.connected:
            self._out.append(Send(node.index, message))

    def _record(self, now: Now, kind: str, text: str, *, node: int | None = None, cause: Cause | None = None) -> None:
        self._put(self._event(now, kind, Closing(cause or Cause.KILLED, text, node=node), cause))

    def _put(self, event: Event) -> None:
        self._history.append(event)
        self._out.append(Record(event))

    def _event(self, now: Now, kind: str, closing: Closing, cause: Cause | None = None) -> Event:
        return Event(
            at=now.wall, attempt=self._attempt, kind=kind, text=closing.text, generation=self._generation,
            node=closing.node, rank=closing.rank, cause=closing.cause if kind == "failure" else cause,
            where=closing.where, step=self._board.best_step, checkpoint=self._board.checkpoint, evidence=closing.evidence,
        )  # fmt: skip

    def snapshot(self, now: Now) -> RunState:
        """All that is known, for state.json."""
        end = self._end
        stopping = self._phase is Phase.CLOSING
        return RunState(
            run=self._plan.run_id,
            name=self._plan.name,
            cluster=self._plan.cluster,
            state=end.state if end is not None else self._state(),
            attempt=self._attempt,
            generation=self._generation,
            submitted_at=self._plan.submitted_at,
            cause=end.cause if end is not None else None,
            exit_code=end.exit_code if end is not None and end.state.ended else None,
            step=self._board.step if self._board.step is not None else self._board.best_step,
            total_steps=self._board.total_steps,
            rate=self._board.rate() if end is None else None,
            metrics=self._board.metrics,
            checkpoint=self._board.checkpoint,
            fingerprint=self._board.fingerprint,
            world_size=len(self._board.ranks) or None,
            restarts=restarts_by_cause(self._history),
            nodes=self._roster.view(self._members),
            ranks=tuple(view.state(stopping) for view in self._board.ranks.values()),
            failure=self._failure,
            message=self._message,
            started_at=self._started_at,
            ended_at=end.ended_at if end is not None and end.state.ended else None,
            updated_at=now.wall,
            boot_id=boot_id(),
            monotonic_s=now.mono,
        )

    def _state(self) -> State:
        if self._generation == 0:
            return State.STARTING
        if self._phase is Phase.OPEN and all(view.pid is not None for view in self._board.ranks.values()):
            return State.RUNNING
        return State.STARTING if self._generation == 1 and self._phase is Phase.OPEN else State.REGROUPING


def _step(pulse: messages.RankPulse | None) -> str:
    return "none" if pulse is None or pulse.step is None else str(pulse.step)
