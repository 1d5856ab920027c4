"""Supervise a run on one host: hold the host's slots (the GPUs or cores that the run needs there), run its agent, and
run the attempts together with the other hosts.

It boots while the submitter is connected, reports where it listens, receives the addresses of the others and then the
message to begin, and from then on needs no submitter. Until that message it starts nothing. If it received only the
addresses, it asks the others whether they were told to begin.

It waits for slots until all hosts have theirs (Prepare). Then the leader runs the coordinator's agent, the others run
their nodes' agents, and the next attempt follows. If the leader is lost, the next in line of a majority takes over.
"""

import os
import sys
import time
from collections.abc import Callable, Mapping
from typing import BinaryIO

import msgspec

from launcher.clock import boottime
from launcher.copies.memory_tier import close_tier
from launcher.errors import Exit, Fenced, LaunchError
from launcher.places.ssh.host import late_messages
from launcher.places.ssh.host.follower import Follower, TakeOver, leader_of
from launcher.places.ssh.host.leader import Leader, end_as_announced, propose, send_end, send_end_to_others
from launcher.places.ssh.host.runs_here import RunsOnHost
from launcher.places.ssh.host.supervisor_messages import Ask, Commit, Prepare, SupervisorStatus, granted, statuses
from launcher.places.ssh.host.supervisor_rpc import HEAR_S, WIRE, SupervisorRpc
from launcher.places.ssh.host.supervisor_state import SupervisorState
from launcher.places.ssh.messages import GoAhead, Opened, Supervisors
from launcher.plan.model import Plan
from launcher.plan.on_hosts import least_hosts, most_of_a_host
from launcher.remote.rpc.wire import decoded, encoded
from launcher.run.durable import readable, write_record
from launcher.run.records import AttemptEnd
from launcher.supervisor.attempt_end import cancelled, cut_short
from launcher.supervisor.slots.take import Demand, Slots
from launcher.supervisor.strategy import Strategy
from launcher.supervisor.waiting import Waiter, record_queued
from launcher.supervisor.wakeup import Wakeup
from launcher.wire.frames import wire_key

_WORDS = msgspec.json.Decoder(Supervisors | GoAhead)
_TURN_S = 0.5
_SOON_S, _SOON_FOR_S = 0.03, 3.0
_OTHERS_S = 30.0  # how long a supervisor that was not told to begin looks for one that was
_NOBODY_TIMES = 3  # rounds without any answer after which no other supervisor is assumed
_LEADER_EVERY_S = 2.0


class HostSupervisor(Strategy):
    """The supervisor of a run on one host.

    The arguments on its command line are ATTEMPT NODE GPUS: the attempt's number, this host's number in the plan, and
    the GPUs that may be used, with commas between.
    """

    def boot(self) -> bytes:
        """Read the attempt's state, start to listen for the other hosts' supervisors, and return the line with the
        port, which is for the process that started this one.
        """
        number, node = int(self.words[0]), int(self.words[1])
        self._supervisor, self._wakeup = SupervisorState(self.run, number, node), Wakeup()
        key = wire_key(self._supervisor.secret, WIRE, self._supervisor.plan.run_id, number)
        address = self._supervisor.plan.nodes[node].address
        self._supervisor.rpc = SupervisorRpc(address, key, self._supervisor.answering(self._wakeup))
        return encoded(Opened(self._supervisor.rpc.port))

    def supervise(self, go: BinaryIO) -> int:
        """Run this host's part until the run has ended here, and return the exit code. If the run is not to begin,
        return 0 after removing its folder, unless hosts share that or it has an earlier attempt.

        `go` has the submitter's messages, the last of which is to begin. If the submitter exits before that, the run
        begins only if another supervisor got the message.
        """

        def stay() -> int:
            """Wait for the message to begin, then run this host's part; return the exit code."""
            with go:
                told = _wait_for_go(self._supervisor, go)
            if not told:
                self._supervisor.here.discard()
                return Exit.OK
            return wait_and_run(
                self._supervisor, self._wakeup, tuple(name for name in self.words[2].split(",") if name)
            )

        return to_its_end(self._supervisor, stay)


def to_its_end(supervisor: SupervisorState, work: Callable[[], int]) -> int:
    """Run `work` as the supervisor's main function, with output to the supervisor's log, and return its exit code or
    that of the LaunchError by which it ended.

    In any case close the supervisor's connections afterwards, and start a process that informs the hosts in
    `supervisor.to_be_told` that the run has ended.
    """
    try:
        supervisor.here.log_to()
        return _done(supervisor, work)
    finally:
        if supervisor.place is not None:
            supervisor.place.leave()
        supervisor.rpc.close()
        late_messages.send(
            supervisor.run, "end", [supervisor.rpc.peer(number).host for number in supervisor.to_be_told]
        )


def _done(supervisor: SupervisorState, work: Callable[[], int]) -> int:
    """Run `work` and return its exit code, or the exit code of the LaunchError that ended it, which is printed.

    If this host leads, such an error also ends the attempt, as failed by the launcher unless it has an end already, and
    the end is sent to the other hosts. Fenced ends nothing: a newer attempt exists.
    """
    try:
        return work()
    except Fenced as fenced:
        print(fenced, file=sys.stderr)
        return fenced.exit_code
    except LaunchError as error:
        print(error, file=sys.stderr)
        supervisor.here.give_up(str(error))
        if supervisor.leads:
            send_end_to_others(supervisor)
        return error.exit_code


def _wait_for_go(supervisor: SupervisorState, go: BinaryIO) -> bool:
    """Read the other supervisors' addresses from `go`, then the message to begin; return True once it came.

    If the submitter exits before that, ask the other supervisors for up to half a minute, and return whether one of
    them was told to begin.
    """
    knows = False
    for line in go:
        match decoded(line, _WORDS):
            case Supervisors(peers=peers):
                supervisor.rpc.join(peers, supervisor.node)
                write_record(supervisor.attempt.supervisors, peers)
                knows = True
            case GoAhead():
                supervisor.ready.told = True
                return True
    return knows and _another_was_told(supervisor)


def _another_was_told(supervisor: SupervisorState, turn_s: float = _TURN_S) -> bool:
    """Return whether the submitter, which has exited, told another supervisor to begin the attempt; ask the others
    every `turn_s` seconds. If it did, this supervisor counts as told.

    Return False once all others deny it, none of them can be reached several times in a row, or half a minute has
    passed.
    """
    deadline, empty = time.monotonic() + _OTHERS_S, 0
    while time.monotonic() < deadline and empty < _NOBODY_TIMES:
        there = statuses(supervisor.rpc.ask(Ask()))
        if any(one.told for one in there.values()):
            supervisor.ready.told = True
            return True
        if len(there) == len(supervisor.rpc.others):
            return False
        empty = 0 if there else empty + 1
        time.sleep(turn_s)
    return False


def wait_and_run(supervisor: SupervisorState, wakeup: Wakeup, gpus: tuple[str, ...], *, again: bool = False) -> int:
    """Wait for the run's turn, if its `queue` options hold it back, and for slots on the GPUs `gpus`; then run one
    attempt after the other until the run has ended here. Return the exit code, also if it ends during the wait.

    `again` says that an earlier supervisor, which is known to be gone, has claimed the present attempt here.
    """
    supervisor.here.register()
    if waits_first(supervisor.plan) and not wait_for_turn(supervisor, wakeup):
        return _exit_code(supervisor, Exit.CANCELLED)
    slots = slots_for(supervisor.plan, gpus)
    slots.enqueue()
    if not _wait_for_slots(supervisor, wakeup, slots):
        return _exit_code(supervisor, Exit.CANCELLED)
    return carry_on(supervisor, wakeup, again=again)


def carry_on(supervisor: SupervisorState, wakeup: Wakeup, *, again: bool = False) -> int:
    """Run one attempt after the other until the run has ended here; return the exit code.

    Each attempt is claimed first, so that no second supervisor runs it on this host; raise Fenced if another has
    claimed it. `again` says that the claim on the first attempt is of an earlier supervisor which is known to be gone,
    so that this one takes its place.
    """
    while True:
        supervisor.here.open(again=again)
        again, after = False, _carried_out(supervisor, wakeup)
        if after is None:
            close_tier(supervisor.run.path, supervisor.attempt.number)
            return _exit_code(supervisor, Exit.OK)
        supervisor.move(after)


def _carried_out(supervisor: SupervisorState, wakeup: Wakeup) -> int | None:
    """Run the supervisor's present attempt until it has ended, as its leader, which runs the coordinator and decides,
    or as a follower; return the number of the next attempt, or None if the run has ended.
    """
    return Leader(supervisor, wakeup).carry_out() if supervisor.leads else Follower(supervisor, wakeup).carry_out()


def _exit_code(supervisor: SupervisorState, unsaid: Exit) -> int:
    """Return the exit code in the end record of the supervisor's present attempt, or `unsaid` if there is no such
    record that can be read.
    """
    end = readable(supervisor.attempt.end, AttemptEnd)
    return end.exit_code if end is not None else unsaid


def slots_for(plan: Plan, gpus: tuple[str, ...]) -> Slots:
    """Return the slots that the plan needs on this host, taken from the GPUs `gpus` if it needs GPUs; none of them is
    taken yet.
    """
    share = most_of_a_host(plan)
    demand = Demand(share.gpus, share.cpus)
    stamp, cpus, priority = int(plan.submitted_at * 1000), len(os.sched_getaffinity(0)), plan.spec.queue.priority
    return Slots(plan.run_id, stamp, demand, gpus, cpus, priority=priority)


def waits_first(plan: Plan) -> bool:
    """Return whether the run waits for anything but slots: for a start time, another run, or its user's release."""
    return plan.spec.queue.hold or plan.starts_at is not None or bool(plan.awaited)


def wait_for_turn(supervisor: SupervisorState, wakeup: Wakeup) -> bool:
    """Wait until the run may start but for its slots, as when its start time has come and the runs that it waits for
    have ended. Return False if the run was stopped, has ended, or waits for what cannot happen any more.

    Only the leader checks this, and the other hosts ask it; until then none of them takes slots.
    """
    waits = Waiter(supervisor.run, supervisor.attempt, supervisor.plan, RunsOnHost().look)
    watch, supervisor.ready.held_back = QueueWatch(supervisor), True
    while supervisor.ready.held_back:
        if wakeup.stop_asked:
            _end_stopped(supervisor)
            return False
        if supervisor.leads:
            never, reasons = waits.check()
            if never:
                supervisor.here.end(cancelled(never))
                send_end_to_others(supervisor)
                return False
            supervisor.ready.held_back = bool(reasons)
            if reasons:
                record_queued(supervisor.run, supervisor.attempt, "; ".join(reasons))
        if not watch.look():
            return False
        wakeup.sleep(_TURN_S)
    return True


def _wait_for_slots(supervisor: SupervisorState, wakeup: Wakeup, slots: Slots) -> bool:
    """Take this host's slots, and wait until all hosts of the run have theirs; then return True. Return False if the
    run was stopped or has ended.

    If an older run waits for slots that this host has taken meanwhile, they are released and waited for again, since
    that run may hold slots on another host that this one needs.
    """
    soon_until = time.monotonic() + _SOON_FOR_S  # the usual case: all is free, and hosts differ by moments
    watch, ready = QueueWatch(supervisor), supervisor.ready
    while True:
        if wakeup.stop_asked:  # checked right after waking, because the signal wakes only once
            _end_stopped(supervisor)
            return False
        ready.take(slots)
        if ready.gpus is not None and (ready.began or (supervisor.leads and _all_begin(supervisor))):
            return True
        if supervisor.leads and ready.waits_for:
            record_queued(supervisor.run, supervisor.attempt, ready.waits_for)
        if not watch.look():
            return False
        if ready.gpus is not None and slots.contested() and ready.let_go(slots):
            slots.enqueue()  # an older run waits here, and may hold elsewhere what this one needs
        wakeup.sleep(_SOON_S if time.monotonic() < soon_until else _TURN_S)


def _end_stopped(supervisor: SupervisorState) -> None:
    """Write the end of a run that was stopped while it waited for its hosts, and if this host leads, send the end to
    the other hosts.
    """
    supervisor.here.pass_on_stop()
    supervisor.here.end(cut_short(supervisor.attempt, "it waited for its hosts", time.time()))
    if supervisor.leads:
        send_end(supervisor)  # the others may not have been asked


class QueueWatch:
    """A supervisor's repeated question to the run's leader while this host waits for slots or its turn.

    The leader reports whether the spec's `queue` options still hold the run back and whether it has begun, and this
    host acts by that. If the leader is silent for longer than `recovery.wait` and a lease together, this host takes
    part in the election of another.
    """

    def __init__(self, supervisor: SupervisorState, every_s: float = _LEADER_EVERY_S) -> None:
        self._supervisor, self._every_s = supervisor, every_s
        self._heard_at = self._next = 0.0
        self._attend()

    def look(self) -> bool:
        """Change to the next attempt if this host has accepted one, and ask the leader for its state if the last time
        was long enough ago (`every_s`). Return False once the run has ended.

        Raise Fenced if the run continues without this host.
        """
        supervisor = self._supervisor
        if supervisor.ballot.accepted is not None:
            self._move(supervisor.ballot.accepted.attempt)
        supervisor.check_part_in(supervisor.ballot.outrun_by)
        end = readable(supervisor.attempt.end, AttemptEnd)
        if end is not None and end.state.ended:
            return False
        if time.monotonic() < self._next:
            return True
        self._ask()
        self._next = time.monotonic() + self._every_s
        return True

    def _attend(self) -> None:
        """Begin to watch the leader of the present attempt, which counts as having answered now."""
        self._heard_at, self._next = boottime(), time.monotonic() + self._every_s
        self._take_over = TakeOver(self._supervisor)

    def _move(self, number: int) -> None:
        """Go on to attempt `number` of the run, whose plan is on disk, and watch its leader. If this host leads it only
        to end the run, write the end and send it to the other hosts.
        """
        self._supervisor.move(number)
        self._supervisor.here.register()
        self._attend()
        if self._supervisor.leads and end_as_announced(self._supervisor) is not None:
            send_end_to_others(self._supervisor)

    def _ask(self) -> None:
        """Ask the leader for its state, and adopt what it reports. If it has been silent for longer than the sum of
        `recovery.wait` and the lease, take part in the election of another leader, and change to the attempt that
        follows.

        If this host leads and still waits for slots, only check that no other host leads this or a newer attempt, and
        raise Fenced if one does. Once it has the slots, do nothing: the check is made before all hosts begin.
        """
        supervisor = self._supervisor
        if supervisor.leads:
            if supervisor.ready.gpus is None:  # else it is looked at before all begin
                supervisor.check_lead(statuses(supervisor.rpc.ask(Ask(), limit_s=HEAR_S)))
            return
        preparation = supervisor.ready.preparations
        leader = supervisor.rpc.ask_one(Ask(), leader_of(supervisor), HEAR_S)
        if isinstance(leader, SupervisorStatus) and not leader.leaderless:  # else it waits for another leader
            self._heard_at = boottime()
            self._follow(leader, preparation)
        elif boottime() > self._heard_at + supervisor.patience_s + supervisor.plan.spec.recovery.lease_s:
            self._take_over.open()
        if supervisor.ballot.leaderless and (number := self._take_over.look()) is not None:
            self._move(number)

    def _follow(self, leader: SupervisorStatus, preparation: int) -> None:
        """Adopt what the leader reports: whether the run is held back, that this host is to begin the attempt as the
        others did, or that it may release its slots again, because the leader does not ask any more that they are kept.
        Ignore a report on another attempt, and raise Fenced if this or a newer attempt runs without this host.

        `preparation` is the number of the leader's newest request to keep slots that this host had received before it
        asked for this report: a newer request than that stays valid.
        """
        supervisor = self._supervisor
        supervisor.check_part_in(leader.attempt if leader.settled else 0)
        if leader.attempt != supervisor.attempt.number:
            return
        supervisor.leader_answered()
        supervisor.ready.held_back = leader.held_back
        if leader.began:
            supervisor.ready.begin_late(supervisor.attempt.number)
        elif not leader.prepared:
            supervisor.ready.take_back(preparation)


def _all_begin(supervisor: SupervisorState) -> bool:
    """Ask all hosts, as the leader, whether each has the slots it needs. If so, have all of them begin and return True.

    Hosts that do not answer are waited for during `recovery.wait` from this supervisor's start; then the rest begin
    without them if they are as many as the run needs at least (`nodes.min`; with several roles, all). Return False if a
    host lacks slots or does not answer yet, which is recorded as the reason why the run waits; if a host has voted for
    a newer attempt, upon which this host tries to open a newer one; or if a host does not promise to keep its slots.
    The caller asks again later.
    """
    there = statuses(supervisor.rpc.ask(Ask()))
    supervisor.check_lead(there)
    waits = [answer.waits_for for answer in there.values() if not answer.has_slots]
    silent = [supervisor.rpc.peer(number).host for number in supervisor.rpc.others if number not in there]
    too_few = 1 + len(there) - len(waits) < least_hosts(supervisor.plan)
    if waits or (silent and (too_few or time.monotonic() < supervisor.since + supervisor.patience_s)):
        waits += [f"{host} does not answer the other hosts (launch doctor finds out why)" for host in silent]
        record_queued(supervisor.run, supervisor.attempt, "; ".join(filter(None, waits)) or "waits for the other hosts")
        return False
    if any(one.voted_for > supervisor.attempt.number for one in there.values()):
        _open_anew(supervisor, there)
        return False
    supervisor.ballot.leaderless = False
    ready = supervisor.ready
    ready.prepared = True
    prepared = granted(supervisor.rpc.ask(Prepare(supervisor.attempt.number), there))
    ready.began = ready.prepared = len(prepared) == len(there)
    supervisor.rpc.ask(Commit(supervisor.attempt.number, by_all=ready.began), prepared)  # who misses it asks us
    return ready.began


def _open_anew(supervisor: SupervisorState, there: Mapping[int, SupervisorStatus]) -> None:
    """Open a new attempt with the hosts in `there`, because some of them have voted for a newer attempt than the one
    that this host leads.

    If another leaderless host goes first (it has newer records or a lower number), or too few hosts vote for this one,
    show this host as leaderless, so that another can take over.
    """
    next_in_line = supervisor.ballot.is_next_in_line(supervisor.status(), there)
    number = propose(supervisor, there, None) if next_in_line else None
    supervisor.ballot.leaderless = number is None
    if number is not None:
        supervisor.move(number)
        supervisor.here.register()
