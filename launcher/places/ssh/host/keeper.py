"""Supervise a run on one host: hold the host's slots, run its agent, and carry the run on with the other hosts.

It boots while the submitter is connected, reports where it listens, is told who the others are and then to go, and from
then on needs no submitter. Until it is told to go it starts nothing. If it was told only who the others are, it asks
them whether they were told to go.

It waits for slots until all hosts have theirs (Begin). Then the leader runs the coordinator's agent, the others run
their nodes' agents, and the next attempt follows. If the leader is lost, the next in line of a majority takes over.
"""

import os
import sys
import time
from collections.abc import Callable, Mapping
from typing import BinaryIO

import msgspec

from launcher.clock import boottime
from launcher.copies.memory.tier import close_tier
from launcher.errors import Exit, Fenced, LaunchError
from launcher.places.ssh.host import late_messages
from launcher.places.ssh.host.disk.runs_here import RunsOnHost
from launcher.places.ssh.host.follower import Follower, TakeOver, leader_of
from launcher.places.ssh.host.keeper_messages import Ask, Begin, Begun, KeeperStatus, granted, statuses
from launcher.places.ssh.host.keeper_rpc import WIRE, KeeperRpc
from launcher.places.ssh.host.keeper_state import KeeperState
from launcher.places.ssh.host.leader import Leader, propose, tell, tell_others
from launcher.places.ssh.messages import GoAhead, Keepers, Opened
from launcher.plan.model import Plan
from launcher.remote.rpc.wire import decoded, encoded
from launcher.run.durable import readable, write_record
from launcher.run.records import AttemptEnd
from launcher.supervisor.attempt_end import cancelled, cut_short
from launcher.supervisor.slots.take import Demand, Slots
from launcher.supervisor.strategy import Strategy
from launcher.supervisor.waiting import Waiter, say_queued
from launcher.supervisor.wakeup import Wakeup
from launcher.wire.frames import wire_key

_WORDS = msgspec.json.Decoder(Keepers | GoAhead)
_TURN_S = 0.5
_SOON_S, _SOON_FOR_S = 0.03, 3.0
_OTHERS_S = 30.0  # how long one that was not told to go looks for another that was
_NOBODY_TIMES = 3  # rounds without any answer after which no other supervisor is assumed
_LEADER_EVERY_S, _LEADER_ASK_S = 2.0, 1.0


class HostSupervisor(Strategy):
    """The supervisor of a run on one host; its arguments are ATTEMPT NODE GPUS."""

    def boot(self) -> bytes:
        """Return where this supervisor listens."""
        number, node = int(self.words[0]), int(self.words[1])
        self._keeper, self._wakeup = KeeperState(self.run, number, node), Wakeup()
        key = wire_key(self._keeper.secret, WIRE, self._keeper.plan.run_id, number)
        address = self._keeper.plan.nodes[node].address
        self._keeper.rpc = KeeperRpc(address, key, self._keeper.answering(self._wakeup))
        return encoded(Opened(self._keeper.rpc.port))

    def supervise(self, go: BinaryIO) -> int:
        """Run its part if told to go, else leave nothing here."""

        def stay() -> int:
            with go:
                told = _told_to_go(self._keeper, go)
            if not told:
                self._keeper.here.discard()
                return Exit.OK
            return keep(self._keeper, self._wakeup, tuple(name for name in self.words[2].split(",") if name))

        return to_its_end(self._keeper, stay)


def to_its_end(keeper: KeeperState, work: Callable[[], int]) -> int:
    """Run `work` as the supervisor's main function and return its exit code."""
    try:
        keeper.here.log_to()
        return _done(keeper, work)
    finally:
        keeper.rpc.close()
        late_messages.send(keeper.run, "end", [keeper.rpc.peer(number).host for number in keeper.to_be_told])


def _done(keeper: KeeperState, work: Callable[[], int]) -> int:
    try:
        return work()
    except Fenced as fenced:
        print(fenced, file=sys.stderr)
        return fenced.exit_code
    except LaunchError as error:
        print(error, file=sys.stderr)
        keeper.here.give_up(str(error))
        if keeper.leads:
            tell_others(keeper)
        return error.exit_code


def _told_to_go(keeper: KeeperState, go: BinaryIO) -> bool:
    """Read who the others are, then the message to go; if the submitter died in between, ask whether another
    one got it.
    """
    knows = False
    for line in go:
        match decoded(line, _WORDS):
            case Keepers(peers=peers):
                keeper.rpc.join(peers, keeper.node)
                write_record(keeper.attempt.keepers, peers)
                knows = True
            case GoAhead():
                keeper.ready.told = True
                return True
    return knows and _others_were_told(keeper)


def _others_were_told(keeper: KeeperState, turn_s: float = _TURN_S) -> bool:
    """Return whether another supervisor was told to go; False once all deny it, or none can be reached for a while."""
    deadline, empty = time.monotonic() + _OTHERS_S, 0
    while time.monotonic() < deadline and empty < _NOBODY_TIMES:
        there = statuses(keeper.rpc.ask(Ask()))
        if any(one.told for one in there.values()):
            keeper.ready.told = True
            return True
        if len(there) == len(keeper.rpc.others):
            return False
        empty = 0 if there else empty + 1
        time.sleep(turn_s)
    return False


def keep(keeper: KeeperState, wakeup: Wakeup, gpus: tuple[str, ...]) -> int:
    """Wait for slots, then run one attempt after the other; return the exit code."""
    keeper.here.register()
    if waits_first(keeper.plan) and not wait_for_turn(keeper, wakeup):
        return _exit_code(keeper, Exit.CANCELLED)
    slots = slots_for(keeper.plan, gpus)
    slots.enqueue()
    if not _wait_for_slots(keeper, wakeup, slots):
        return _exit_code(keeper, Exit.CANCELLED)
    return carry_on(keeper, wakeup)


def carry_on(keeper: KeeperState, wakeup: Wakeup, *, again: bool = False) -> int:
    """Run one attempt after the other; `again` is set if the first one had another supervisor here, which is gone."""
    while True:
        keeper.here.open(again=again)
        again, after = False, _carried_out(keeper, wakeup)
        if after is None:
            close_tier(keeper.run.path, keeper.attempt.number)
            return _exit_code(keeper, Exit.OK)
        keeper.move(after)


def _carried_out(keeper: KeeperState, wakeup: Wakeup) -> int | None:
    return Leader(keeper, wakeup).carry_out() if keeper.leads else Follower(keeper, wakeup).carry_out()


def _exit_code(keeper: KeeperState, unsaid: Exit) -> int:
    end = readable(keeper.attempt.end, AttemptEnd)
    return end.exit_code if end is not None else unsaid


def slots_for(plan: Plan, gpus: tuple[str, ...]) -> Slots:
    demand = Demand(plan.gpus_per_node, plan.ranks_per_node * plan.cpus_per_rank)
    stamp, cpus, priority = int(plan.submitted_at * 1000), len(os.sched_getaffinity(0)), plan.spec.queue.priority
    return Slots(plan.run_id, stamp, demand, gpus, cpus, priority=priority)


def waits_first(plan: Plan) -> bool:
    """Return whether the run waits for anything before it wants slots."""
    return plan.spec.queue.hold or plan.starts_at is not None or bool(plan.awaited)


def wait_for_turn(keeper: KeeperState, wakeup: Wakeup) -> bool:
    """Wait until nothing holds the run back; return False if its turn never comes.

    The leader checks, and the others ask it; until then none of them wants slots.
    """
    waits = Waiter(keeper.run, keeper.attempt, keeper.plan, RunsOnHost().look)
    watch, keeper.ready.held_back = QueueWatch(keeper), True
    while keeper.ready.held_back:
        if wakeup.stop_asked:
            _stopped(keeper)
            return False
        if keeper.leads:
            never, reasons = waits.look()
            if never:
                keeper.here.end(cancelled(never))
                tell_others(keeper)
                return False
            keeper.ready.held_back = bool(reasons)
            if reasons:
                say_queued(keeper.run, keeper.attempt, "; ".join(reasons))
        if not watch.look():
            return False
        wakeup.sleep(_TURN_S)
    return True


def _wait_for_slots(keeper: KeeperState, wakeup: Wakeup, slots: Slots) -> bool:
    """Wait until all hosts of the run have what they need; return False if the run was stopped or has ended."""
    soon_until = time.monotonic() + _SOON_FOR_S  # the usual case: all is free, and hosts differ by moments
    watch, ready = QueueWatch(keeper), keeper.ready
    while True:
        if wakeup.stop_asked:  # checked right after waking, because the signal wakes only once
            _stopped(keeper)
            return False
        ready.take(slots)
        if ready.gpus is not None and (ready.began or (keeper.leads and _all_begin(keeper))):
            return True
        if keeper.leads and ready.waits_for:
            say_queued(keeper.run, keeper.attempt, ready.waits_for)
        if not watch.look():
            return False
        if ready.gpus is not None and slots.contested() and ready.let_go(slots):
            slots.enqueue()  # an older run waits here, and may hold elsewhere what this one needs
        wakeup.sleep(_SOON_S if time.monotonic() < soon_until else _TURN_S)


def _stopped(keeper: KeeperState) -> None:
    keeper.here.pass_on_stop()
    keeper.here.end(cut_short(keeper.attempt, "it waited for its hosts", time.time()))
    if keeper.leads:
        tell(keeper)  # the others may not have been asked


class QueueWatch:
    """A check by a supervisor that waits for slots that there is still a leader to begin with."""

    def __init__(self, keeper: KeeperState, every_s: float = _LEADER_EVERY_S) -> None:
        self._keeper, self._every_s = keeper, every_s
        self._heard_at = self._next = 0.0
        self._attend()

    def look(self) -> bool:
        """Return False once the run has ended. Raises Fenced if it goes on without us. Asks seldom, as waits
        may be long.
        """
        keeper = self._keeper
        if keeper.ballot.accepted is not None:
            self._move(keeper.ballot.accepted.attempt)
        keeper.check_part_in(keeper.ballot.outrun_by)
        end = readable(keeper.attempt.end, AttemptEnd)
        if end is not None and end.state.ended:
            return False
        if time.monotonic() < self._next:
            return True
        self._ask()
        self._next = time.monotonic() + self._every_s
        return True

    def _attend(self) -> None:
        self._heard_at, self._next = boottime(), time.monotonic() + self._every_s
        self._take_over = TakeOver(self._keeper)

    def _move(self, number: int) -> None:
        self._keeper.move(number)
        self._keeper.here.register()
        self._attend()

    def _ask(self) -> None:
        keeper = self._keeper
        if keeper.leads:
            if keeper.ready.gpus is None:  # else it is looked at before all begin
                keeper.check_lead(statuses(keeper.rpc.ask(Ask(), limit_s=_LEADER_ASK_S)))
            return
        preparation = keeper.ready.preparations
        leader = keeper.rpc.ask_one(Ask(), leader_of(keeper), _LEADER_ASK_S)
        if isinstance(leader, KeeperStatus):
            self._heard_at = boottime()
            self._follow(leader, preparation)
        elif boottime() > self._heard_at + keeper.patience_s + keeper.plan.spec.recovery.lease_s:
            self._take_over.open()
        if keeper.ballot.leaderless and (number := self._take_over.look()) is not None:
            self._move(number)

    def _follow(self, leader: KeeperStatus, preparation: int) -> None:
        keeper = self._keeper
        keeper.check_part_in(leader.attempt)
        if leader.attempt != keeper.attempt.number:
            return
        keeper.hear_leader()
        keeper.ready.held_back = leader.held_back
        if leader.began:
            keeper.ready.begin_late(keeper.attempt.number)
        elif not leader.prepared:
            keeper.ready.take_back(preparation)


def _all_begin(keeper: KeeperState) -> bool:
    """Ask all hosts, as the leader, whether each has what it needs; if so, none of them lets go of it any more."""
    there = statuses(keeper.rpc.ask(Ask()))
    keeper.check_lead(there)
    waits = [answer.waits_for for answer in there.values() if not answer.has_slots]
    silent = [keeper.rpc.peer(number).host for number in keeper.rpc.others if number not in there]
    too_few = 1 + len(there) - len(waits) < keeper.plan.nodes_min
    if waits or (silent and (too_few or time.monotonic() < keeper.since + keeper.patience_s)):
        waits += [f"{host} does not answer the other hosts (launch doctor finds out why)" for host in silent]
        say_queued(keeper.run, keeper.attempt, "; ".join(filter(None, waits)) or "waits for the other hosts")
        return False
    if any(one.promised > keeper.attempt.number for one in there.values()):
        _open_anew(keeper, there)
        return False
    ready = keeper.ready
    ready.prepared = True
    prepared = granted(keeper.rpc.ask(Begin(keeper.attempt.number), there))
    ready.began = ready.prepared = len(prepared) == len(there)
    keeper.rpc.ask(Begun(keeper.attempt.number, by_all=ready.began), prepared)  # who misses it asks us
    return ready.began


def _open_anew(keeper: KeeperState, there: Mapping[int, KeeperStatus]) -> None:
    """Open a new attempt, because the others have given this one up and promised not to begin it, and none has
    followed.
    """
    number = propose(keeper, there, None)
    if number is not None:
        keeper.move(number)
        keeper.here.register()
