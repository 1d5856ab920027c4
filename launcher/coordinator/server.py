"""Run the coordinator on node 0: the sockets, timers and record writer around the pure state machine. In a pool of SSH
hosts, the voters are those hosts that take part in electing the leader, whose coordinator this is. An agent is the
launcher's process on a node.

In a pool it holds a restart back until half of the voters have the record of the failure that it follows.
"""

import asyncio
import contextlib
import functools
import time
from collections.abc import Callable, Coroutine, Iterable
from math import inf
from pathlib import Path

from msgspec.structs import replace

from launcher.clock import WakingClock, boottime
from launcher.coordinator.coordinator import Coordinator
from launcher.coordinator.effects import (
    Disconnected,
    Drain,
    EndAttempt,
    Finish,
    In,
    KeepHang,
    Move,
    Now,
    Out,
    ProvenDead,
    Record,
    RecordExit,
    Send,
    StoodStill,
    Tick,
)
from launcher.coordinator.history_copies import ANNOUNCED, COPIED_S, HistoryCopies
from launcher.errors import Exit, Fenced
from launcher.plan.model import Plan
from launcher.plan.on_hosts import voters_of
from launcher.run.attempts import used_s_of
from launcher.run.durable import Damaged, read_lines, read_record, readable, write_record
from launcher.run.identity import alive, this_process
from launcher.run.layout import AttemptDir, RunDir
from launcher.run.patience import waiting_for_disks
from launcher.run.record_writer import AWAITED, KeptHang, RecordWriter, RoleEnd
from launcher.run.records import DrainRequest, Endpoint, Event, Handle, ProcessId, RunState
from launcher.states import State
from launcher.wire import messages
from launcher.wire.frames import Wire, WireError, WireServer, handshake_limit_s, wire_key
from launcher.wire.messages import ToAgent, ToCoordinator

_STATE_S, _STATE_TIMES = 1.0, 50  # between two states; at least so many times as long as it takes to gather one:
_STATE_SOON_S, _STATE_SOON_TIMES = 0.05, 10  # that of 100,000 ranks takes 60 ms, and has to leave time for the agents
_REPORTED_STALL_S = 1.0
_DRAIN_S = 0.5
_COPIED_LOOK_S = 0.005  # steps wait for it
_KNOWN_S = 1.0
_SPARE_WIRES = 64  # beyond two for each node: one that was cut off comes anew before its old wire is known to be gone
_LOOKS_S = (0.0, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 4.0)


class CopyHold:
    """The messages of a restart or of the run's end, which `pass_on` holds back until `release`, so that half of the
    voters first copy the record of the failure or end.

    So a coordinator that takes over on another host knows of it, and counts the failure against the run's budget. To
    the state machine here the delay looks like a slow network.
    """

    def __init__(self, copies: HistoryCopies, *, ends: bool = True, follows: bool = False) -> None:
        """With `ends=False` what this coordinator finishes is not the end of the run. With `follows=True` its first
        start is a restart, after failures that an earlier coordinator has recorded.
        """
        self._copies, self._ends = copies, ends
        self._awaited = 0  # records that half of the voters are to have
        self._is_new = follows and copies.copied < inf  # the newest failure has no restart yet
        self._held: list[Out] | None = None
        self.holds_end = False

    @property
    def holds(self) -> bool:
        """Return whether a hold has begun and was not released yet, even if no message waits: `pass_on` now keeps all
        that it gets, except records and answers to heartbeats.
        """
        return self._held is not None

    def pass_on(self, effects: Iterable[Out]) -> list[Out]:
        """Return those of the effects that may be carried out now, in their order; keep the others until `release`.

        If other hosts copy the records, it begins to hold back at the message that restarts ranks after a failure, or
        when the run is to end as succeeded or failed, for which it adds a record that the end is near. From then on the
        end and all messages but answers to heartbeats are kept; records never are.
        """
        effects, waits = [*effects], self._copies.copied < inf
        finish = next((one for one in effects if isinstance(one, Finish)), None)
        now = self.release() if finish is not None else []
        if finish is not None and waits and self._ends and finish.end.state in ANNOUNCED:
            text = f"about to end: {finish.event.text}"
            effects.insert(0, Record(replace(finish.event, kind="ending", text=text, end=finish.end)))
            self._held, self.holds_end = [], True
        for effect in effects:
            match effect:
                case Record(event=event) if event.kind in AWAITED:
                    self._awaited += 1
                    self._is_new = waits
                case Send(message=messages.Start() | messages.ContinueInPlace()) if self._is_new and not self.holds:
                    self._held = []
            is_late = isinstance(effect, Finish) or (
                isinstance(effect, Send) and not isinstance(effect.message, messages.HeartbeatAck)
            )
            (self._held if is_late and self._held is not None else now).append(effect)
        return now

    def is_copied(self, awaited: int, history_bytes: int) -> bool:
        """Return whether at least half of the voters, this host included, have the history up to the newest record that
        has to be copied before the messages are released.

        `awaited` is how many such records have been written to this disk so far, and `history_bytes` the size of the
        history up to the last of these.
        """
        return awaited == self._awaited and self._copies.copied >= history_bytes

    def release(self) -> list[Out]:
        """Stop holding messages back, and return those that were held, in their order, for the caller to carry out."""
        held, self._held, self._is_new, self.holds_end = self._held or [], None, False, False
        return held


class CoordinatorServer:
    """The coordinator's server: `start` listens for agents and writes its address to the run directory. The future
    `ended` gets an exit code once the attempt's end is on disk, or once the server has to leave that end to others:
    FENCED if a newer attempt exists, LOST if too few voters copy the end. It gets the error if a record cannot be
    written.
    """

    def __init__(
        self,
        run: RunDir,
        attempt: AttemptDir,
        plan: Plan,
        address: str,
        token: str,
        clock: Callable[[], float] = boottime,
        copies: HistoryCopies | None = None,
        notify: Callable[[], None] = lambda: None,
    ) -> None:
        """Take the run, its plan and its token; with `copies`, a restart waits a moment until half of the voters have
        the record of its failure, and the end until they have its announcement. `notify` is called when other hosts
        need what was written.
        """
        self._loop = asyncio.get_running_loop()
        self._attempt = attempt
        self._plan = plan
        self._address = address
        key = wire_key(token, messages.WIRE, plan.run_id, attempt.number)
        self._listener = WireServer(key, messages.TO_COORDINATOR, self._attend, 2 * len(plan.nodes) + _SPARE_WIRES)
        handle = readable(attempt.handle, Handle)
        job = handle.job_id if handle is not None else None
        used_s = time_used(run, attempt)
        self._clock, self._told_of_s = WakingClock(clock), 0.0
        self._coordinator = Coordinator(plan, attempt.number, read_lines(run.events, Event), self._now(), job, used_s)
        self._notify = notify
        self._record_writer = RecordWriter(run, attempt, self._record_writer_failed, plan.spec.recovery.lease_s, notify)
        ends, follows = bool(voters_of(plan)) and not plan.ends_with_all, bool(plan.role) and attempt.number > 1
        self._hold = CopyHold(copies or HistoryCopies(), ends=ends, follows=follows)
        self._wires: dict[int, Wire[ToCoordinator, ToAgent]] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._timer: asyncio.TimerHandle | None = None
        self._state_timer: asyncio.TimerHandle | None = None
        self._state_took_s = 0.0
        self.ended: asyncio.Future[Exit] = self._loop.create_future()
        self.goes_on = False  # once it has ended: another attempt follows

    async def start(self) -> None:
        """Listen for agents, write the address to the attempt's record where they look for it, and write the first
        state.
        """
        port = await self._listener.start(self._address)
        here = Endpoint(self._address, port, this_process())
        with waiting_for_disks():  # no agent can have found us yet
            write_record(self._attempt.endpoint, here)
        self._notify()
        self._write_state()
        self._set_timer()
        self._keep_until_done(self._keep_address_written(here))
        if len(self._plan.nodes) > 1:  # the first one cannot be
            self._keep_until_done(self._poll_requests())

    def stop(self, kind: str) -> None:
        """End the attempt for the reason `kind`, such as `cancel` (a key of `STOPS`); called if this process has no
        agent that could ask for it.
        """
        self._handle(EndAttempt(kind))

    async def close(self) -> None:
        """Stop listening, close all connections, and wait until all records are written.

        Call it after the agents were told to exit.
        """
        await self._listener.close()
        for timer in (self._timer, self._state_timer):
            if timer is not None:
                timer.cancel()
        await asyncio.to_thread(self._record_writer.close)

    # -- connections

    async def _attend(self, wire: Wire[ToCoordinator, ToAgent]) -> None:
        """Serve one agent's connection until it closes, in place of an older one of the same node, which is aborted.

        Raise WireError if the first message is not the Join of a node of the plan, or TimeoutError if none comes.
        """
        connected_at = self._clock.now()
        async with asyncio.timeout(handshake_limit_s(len(self._plan.nodes))):
            join = await wire.receive()
        if not isinstance(join, messages.Join) or not 0 <= join.node < len(self._plan.nodes):
            raise WireError("the first message must be a join of a node of the plan")
        older = self._wires.get(join.node)
        self._wires[join.node] = wire
        if older is not None:
            older.abort()  # a peer that is cut off takes nothing any more, and a close would wait for it
        self._coordinator.connect(join.node, connected_at)
        self._handle(join)
        try:
            await wire.attend(functools.partial(self._receive, join.node))
        finally:
            if self._wires.get(join.node) is wire:
                del self._wires[join.node]
                self._handle(Disconnected(join.node))
                self._look_for(join.node, join.process)

    def _receive(self, node: int, message: ToCoordinator) -> None:
        """Handle one message from the node's agent."""
        if message.node != node:
            raise WireError("a message in another node's name")
        if isinstance(message, messages.Heartbeat) and not self.ended.done():
            answer = self._coordinator.acknowledge(message, self._clock.now())
            if answer is not None:
                self._carry_out(Send(node, answer))
                return
        self._handle(message)

    def _look_for(self, node: int, process: ProcessId) -> None:
        """Check in the background, a few times, whether the process of node `node`'s agent, which has no connection, is
        dead. Once it is, give the state machine the event that this agent is dead; if it runs, or is on another
        machine, give none.
        """
        self._keep_until_done(self._prove_death(node, process))

    def _keep_until_done(self, work: Coroutine[None, None, None]) -> None:
        """Run the coroutine as a task of the event loop, and hold a reference to the task until it is done, because the
        loop itself holds none. Its errors are not handled here.
        """
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _keep_address_written(self, here: Endpoint) -> None:
        """Rewrite the coordinator's address file whenever it is damaged or deleted, as new agents read it."""
        while not self.ended.done():
            await asyncio.sleep(_KNOWN_S)
            with contextlib.suppress(OSError):  # a disk that takes nothing now may do so a second later
                await asyncio.to_thread(keep_written, self._attempt.endpoint, here)

    async def _poll_requests(self) -> None:
        """Read twice a second, until the attempt ends, the file of requests that users (`launch nodes`) and batch
        processes write: to drain nodes or to move ranks off them. Pass each to the state machine once, as an event.
        """
        drained, moved = set[int](), 0
        while not self.ended.done():
            await asyncio.sleep(_DRAIN_S)
            request = await asyncio.to_thread(readable, self._attempt.drain, DrainRequest) or DrainRequest()
            for node in request.nodes:
                if node not in drained:
                    drained.add(node)
                    self._handle(Drain(node, request.why.get(node, "")))
            for move in request.moves[moved:]:
                self._handle(Move(move.node, move.to))
            moved = max(moved, len(request.moves))

    async def _prove_death(self, node: int, process: ProcessId) -> None:
        """Look ten times, over 8 seconds, whether the agent's process `process` still runs; once it does not, give the
        state machine the event that the agent of node `node` is dead. Do nothing if the process runs on, or is on
        another machine, where this cannot be seen: then the agent's lease decides.
        """
        for pause_s in _LOOKS_S:
            await asyncio.sleep(pause_s)
            if self.ended.done():
                return
            state = alive(process)
            if state is None:
                return
            if state is False:
                self._handle(ProvenDead(node, f"process {process.pid} of the agent is gone"))
                return

    # -- the state machine

    def _handle(self, event: In) -> None:
        """Handle one event: carry out its effects and set the timer. Have the state written soon, unless the event is a
        heartbeat or a Tick.
        """
        if self.ended.done():
            return
        now = self._now()
        stood_s = self._clock.slept_s - self._told_of_s
        if stood_s >= _REPORTED_STALL_S:
            self._told_of_s = self._clock.slept_s
            self._carry_out_all(self._coordinator.handle(StoodStill(stood_s), now))
        self._carry_out_all(self._coordinator.handle(event, now))
        self._set_timer()
        if not isinstance(event, messages.Heartbeat | Tick):
            self._write_state_soon()

    def _now(self) -> Now:
        """Return the present moment on three clocks: the monotonic clock, the wall clock and the time since boot."""
        return Now(self._clock.now(), time.time(), boottime())

    def _carry_out_all(self, effects: list[Out]) -> None:
        """Carry out the effects at once, except those of a restart or of the run's end that have to wait until half of
        the voters have a copy of the record of the failure or end (`CopyHold`): a task carries these out then.
        """
        held_before = self._hold.holds
        for effect in self._hold.pass_on(effects):
            self._carry_out(effect)
        if self._hold.holds and not held_before:
            self._keep_until_done(self._go_on_once_copied())

    async def _go_on_once_copied(self) -> None:
        """Wait until half of the voters have the record of a failure or of the end, then carry out what was held back
        until then: the next start, or the end.

        If they do not have it in time, the next start is carried out anyway. The end is not: the coordinator leaves and
        the attempt stays open, as the other voters may elect another leader.
        """
        began, hold = self._loop.time(), self._hold
        while hold.holds and not hold.is_copied(*self._record_writer.awaited_on_disk):
            limit_s = self._plan.spec.recovery.lease_s if hold.holds_end else COPIED_S
            if self._loop.time() >= began + limit_s:
                what, then = ("end", "left open") if hold.holds_end else ("failure", "the run continues without it")
                text = f"too few voters have the record of the {what} after {limit_s:g} s: {then}"
                self._record_writer.write(Event(time.time(), self._attempt.number, "history_behind", text))
                if hold.holds_end:
                    if not self.ended.done():
                        self.ended.set_result(Exit.LOST)
                    return
                break
            await asyncio.sleep(_COPIED_LOOK_S)
        for effect in hold.release():
            self._carry_out(effect)

    def _carry_out(self, effect: Out) -> None:
        """Carry out one effect: send a message, or queue a record to be written."""
        match effect:
            case Send(node=node, message=message):
                wire = self._wires.get(node)
                if wire is not None:
                    wire.send(message)
            case Record(event=event):
                if event.end is not None:  # a host that takes over writes this end, and shows it with this state
                    self._record_writer.write(self._coordinator.snapshot(self._now(), ended=False))
                self._record_writer.write(event)
            case RecordExit(exit=exit_):
                self._record_writer.write(exit_)
            case KeepHang(number=number, report=report):
                self._record_writer.write(KeptHang(number, report))
            case Finish(end=end, event=event):
                numbers = self._coordinator.snapshot(self._now(), ended=False)
                self._record_writer.write(numbers)
                if self._plan.ends_with_all and end.state in (State.SUCCEEDED, State.FAILED):
                    text = f"role {self._plan.role}: {end.message}"
                    self._record_writer.write(RoleEnd(end))
                    self._record_writer.write(replace(event, kind="role", text=text))
                    self._record_writer.write(replace(numbers, state=State.RUNNING, message=text))
                else:
                    self._record_writer.write(end)
                    self._record_writer.write(event)
                    self._record_writer.write(self._coordinator.snapshot(self._now()))
                self.goes_on = end.state is State.QUEUED
                if not self.ended.done():
                    self.ended.set_result(Exit(end.exit_code))

    def _set_timer(self) -> None:
        """Set the timer for the state machine's next deadline, instead of an earlier one; there is no timer without a
        deadline or after the attempt's end.
        """
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        deadline = self._coordinator.next_deadline()
        if deadline is not None and not self.ended.done():
            self._timer = self._loop.call_later(max(0.0, deadline - self._clock.now()), self._handle, Tick())

    def _write_state_soon(self) -> None:
        """Schedule a write of the state for a short time after the event that was just handled, unless one is due
        before.
        """
        planned = self._state_timer.when() if self._state_timer is not None else inf
        due = state_due_at(planned, self._loop.time(), self._state_took_s)
        if due < planned:
            if self._state_timer is not None:
                self._state_timer.cancel()
            self._state_timer = self._loop.call_at(due, self._write_state)

    def _write_state(self) -> None:
        """Queue the current state to be written, and schedule the next call, which writes a newer one.

        If an earlier state still waits for a slow disk, queue none, and schedule the next call sooner than usual.
        """
        if self.ended.done():
            return
        waits = self._record_writer.state_waits  # for a disk that is slow, or full: those after it would pile up
        if not waits:
            began = time.thread_time()
            self._record_writer.write(self._coordinator.snapshot(self._now(), ended=not self._hold.holds_end))
            self._state_took_s = time.thread_time() - began
        pause_s = _STATE_SOON_S if waits else max(_STATE_S, _STATE_TIMES * self._state_took_s)
        self._state_timer = self._loop.call_later(pause_s, self._write_state)

    def _record_writer_failed(self, error: Exception) -> None:
        """Make the event loop end the server because a record could not be written; called in the record writer's
        thread.
        """
        self._loop.call_soon_threadsafe(self._break, error)

    def _break(self, error: Exception) -> None:
        """End the server: as fenced if a newer attempt owns the run, else with `error`."""
        if not self.ended.done():
            if isinstance(error, Fenced):
                self.ended.set_result(Exit.FENCED)
            else:
                self.ended.set_exception(error)


def state_due_at(planned: float, now: float, takes_s: float = 0.0) -> float:
    """Return when to write the state after an event at the time `now`: after a short delay, longer if gathering a state
    takes `takes_s` seconds, but no later than `planned`, so that a flood of events cannot postpone it for ever. All
    times are by the event loop's clock.
    """
    return min(planned, now + max(_STATE_SOON_S, _STATE_SOON_TIMES * takes_s))


def keep_written(path: Path, record: Endpoint) -> None:
    """Write `record`, the coordinator's address, to `path` again if the file is missing or damaged or has other
    content.
    """
    if readable(path, Endpoint) != record:
        write_record(path, record)


def time_used(run: RunDir, attempt: AttemptDir) -> float:
    """Return for how many seconds the attempts before `attempt` have run since a user submitted or resumed the run. The
    number is in the last state that the run's folder records; return 0.0 if there is no state or it is damaged.
    """
    try:
        return used_s_of(run, attempt, read_record(run.state, RunState))
    except Damaged:
        return 0.0
