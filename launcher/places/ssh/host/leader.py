"""The leader's part of an attempt: the coordinator's agent, the records for all, and the attempt that follows."""

import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from math import inf

from launcher.clock import WakingClock, boottime
from launcher.errors import Exit
from launcher.places.ssh.host.attempt_on_host import reseated
from launcher.places.ssh.host.keeper_messages import (
    Ask,
    KeeperStatus,
    RecordsSaid,
    Settled,
    Vote,
    granted,
    statuses,
)
from launcher.places.ssh.host.keeper_state import KeeperState
from launcher.places.ssh.host.late_messages import GIVE_UP_WAITS
from launcher.places.ssh.host.record_copies import RecordReplicator, copy_records
from launcher.places.ssh.quorum.core import may_start_from
from launcher.run.attempts import attempts, new_attempt
from launcher.run.avoided import avoid, avoided
from launcher.run.durable import append_line, make_dir, read_lines, readable
from launcher.run.layout import AttemptDir
from launcher.run.patience import waiting_for_disks
from launcher.run.records import NODE_UNFIT, AttemptEnd, Blame, Event, RunState
from launcher.states import Cause, State
from launcher.supervisor.allocation import Allocation, StopSignal
from launcher.supervisor.attempt_end import cut_short
from launcher.supervisor.wakeup import Wakeup

_AGAIN_S = 1.0
_HEAR_S = 1.0


class Hearing:
    """Watch the other hosts while this one leads: avoid those that fall silent, and tell late ones that the
    attempt has begun.
    """

    def __init__(self, keeper: KeeperState, clock: Callable[[], float] = boottime) -> None:
        self._keeper = keeper
        self._clock = WakingClock(clock)  # what this process has slept through was no silence of theirs
        self._heard_at = dict.fromkeys(keeper.rpc.others, self._clock.now())
        self._silent: frozenset[int] = frozenset()
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._work, name="hearing", daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._over.set()
        self._thread.join()

    def _work(self) -> None:
        with waiting_for_disks():
            while not self._over.wait(_HEAR_S):
                self.look()

    def look(self) -> None:
        keeper, now = self._keeper, self._clock.now()
        there = statuses(keeper.rpc.ask(Ask(), limit_s=_HEAR_S))
        number = keeper.attempt.number
        self._heard_at |= {one: now for one, status in there.items() if status.attempt == number}
        lease_s = keeper.plan.spec.recovery.lease_s
        silent = frozenset(one for one, at in self._heard_at.items() if at < self._clock.now() - lease_s)
        avoid_silent(keeper, silent - self._silent)
        self._silent = silent
        if keeper.plan.disks_apart:
            tell_of_attempt(keeper, there)


def tell_of_attempt(keeper: KeeperState, there: Mapping[int, KeeperStatus]) -> None:
    """Send the attempt to voters that came back, which accept it once they have the history, and then that it
    is settled.
    """
    number, voters = keeper.attempt.number, keeper.ballot.voter.newest.voters
    here = {one: status for one, status in there.items() if status.attempt == number}
    late = [one for one, status in here.items() if one in voters and status.accepted < number]
    if late and (said := keeper.goes_on()) is not None:
        keeper.rpc.ask(said, late, _HEAR_S)
    if unsettled := [one for one, status in here.items() if status.accepted == number and not status.settled]:
        keeper.rpc.ask(Settled(number, keeper.node), unsettled, _HEAR_S)


def avoid_silent(keeper: KeeperState, gone: Collection[int]) -> None:
    """Avoid hosts that fell silent for a while, here and by whoever resumes the run."""
    recovery, number, now = keeper.plan.spec.recovery, keeper.attempt.number, time.time()
    text = f"not heard for {recovery.lease_s:g} s"
    here = {node.host for node in keeper.plan.nodes if node.index not in keeper.plan.away}
    names = [name for one in sorted(gone) if (name := keeper.rpc.peer(one).host) in here]
    if names and recovery.avoid_s:
        avoid(keeper.run, [Blame(name, text, number, now, now + recovery.avoid_s) for name in names])


class Leader:
    """One attempt of a supervisor that leads."""

    def __init__(self, keeper: KeeperState, wakeup: Wakeup) -> None:
        self._keeper, self._wakeup = keeper, wakeup

    def carry_out(self) -> int | None:
        """Run the attempt until it has ended; return the number of the next one, or None if there is none."""
        keeper = self._keeper
        replicator = RecordReplicator(keeper.run, keeper.attempt, keeper.rpc) if keeper.plan.disks_apart else None
        hearing = Hearing(keeper)
        over = False
        try:
            while (left_s := keeper.starts_from - boottime()) > 0 and not self._wakeup.stop_asked:
                self._wakeup.wait(left_s)
            keeper.coordinator_due_at = boottime()
            stop = StopSignal(self._wakeup, keeper.attempt, keeper.here.before)
            end = Allocation(keeper.run, keeper.attempt, keeper.plan, self._wakeup, stop, [keeper.agent()]).carry_out()
            blame_hosts(keeper)
            if end.state.ended:
                keeper.ready.give_back()
            over = end.state.ended and not self._wakeup.stop_asked  # a stop is sent to all hosts by its sender
            if end.state is not State.QUEUED or end.exit_code == Exit.FENCED:
                return None
        finally:
            keeper.coordinator_due_at = inf
            hearing.close()
            missed = replicator.close() if replicator is not None else ()
            keeper.to_be_told = missed if over else ()
        self._wakeup.wait(end.delay_s)
        if self._wakeup.stop_asked:
            self._stopped(end)
            return None
        return self._follow(end)

    def _follow(self, end: AttemptEnd) -> int | None:
        """Open the next attempt with those hosts that answer, once they are enough."""
        keeper = self._keeper
        give_up_at = time.monotonic() + GIVE_UP_WAITS * keeper.patience_s
        while not self._wakeup.stop_asked:
            if keeper.ballot.accepted is not None:
                return keeper.ballot.accepted.attempt
            answers = statuses(keeper.rpc.ask(Ask()))
            keeper.check_lead(answers)
            keeper.check_part_in(keeper.ballot.outrun_by)  # of which the others may have left already
            there = {number: one for number, one in answers.items() if one.has_slots}
            if enough(keeper, there, leads=True) and keeper.ballot.is_next_in_line(there):
                following = propose(keeper, there, end.cause)
                if following is not None:
                    return following
            keeper.ballot.leaderless = True  # a host with newer records may lead
            if time.monotonic() > give_up_at:
                keeper.here.end(too_few(keeper, there, end.ended_at, leads=True))
                tell_others(keeper)
                return None
            self._wakeup.wait(_AGAIN_S)
        self._stopped(end)
        return None

    def _stopped(self, end: AttemptEnd) -> None:
        """Write the end of a run that was stopped when a next attempt was due."""
        self._keeper.here.pass_on_stop()
        self._keeper.here.end(cut_short(self._keeper.attempt, "it was to start again", end.ended_at))
        tell(self._keeper)


def blame_hosts(keeper: KeeperState) -> None:
    """Avoid hosts whose disks ended generations, or which are unfit, in the next attempt, even one that a user opens.

    Our own host, which leads as long as it is there, is avoided only if it is unfit; then a user has to act.
    """
    number, recovery, now = keeper.attempt.number, keeper.plan.spec.recovery, time.time()
    said = [one for one in read_lines(keeper.run.events, Event) if one.attempt == number]
    texts = {one.node: one.text for one in said if one.node and one.cause is Cause.DISK}
    texts |= {one.node: one.evidence for one in said if one.node is not None and one.kind == NODE_UNFIT}
    blames = [
        Blame(node.host, texts[node.index], number, now, now + recovery.avoid_s)
        for node in keeper.plan.nodes
        if node.index in texts
    ]
    if blames and recovery.avoid_s:
        avoid(keeper.run, blames)


def enough(keeper: KeeperState, others: Collection[int], *, leads: bool) -> bool:
    """Return whether a run may go on with these hosts: they are enough nodes, and the rest cannot go on without us."""
    return keeper.ballot.carries(others, leads=leads) and len({*others, keeper.node}) >= keeper.plan.nodes_min


def tell(keeper: KeeperState) -> Sequence[int]:
    """Send how the attempt ended to hosts with disks of their own; return those that did not take it."""
    return RecordReplicator(keeper.run, keeper.attempt, keeper.rpc).close() if keeper.plan.disks_apart else ()


def tell_others(keeper: KeeperState) -> None:
    """Send how the attempt ended, and keep the hosts that did not take it to be told later."""
    keeper.to_be_told = tell(keeper)


def too_few(keeper: KeeperState, there: Collection[int], since: float, *, leads: bool) -> AttemptEnd:
    """Return the end of an attempt that too few hosts can go on with: which are missing, and what the user can do."""
    missed = [keeper.rpc.peer(number).host for number in sorted(set(keeper.rpc.others) - set(there))]
    last = readable(keeper.run.state, RunState)
    step = (last.safe_checkpoint or last.checkpoint) if last is not None else None
    safe = "no checkpoint was told of" if step is None else f"the checkpoint of step {step} is the newest"
    at = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(since))
    who = f"{len(there) + 1} of its {len(keeper.rpc.others) + 1} hosts answer, too few to go on: since {at} "
    who += f"{', '.join(missed) or 'too many'} did not; {safe}"
    if keeper.ballot.carries(there, leads=leads) or not missed:  # no quorum is missing, but nodes for the job
        return AttemptEnd(State.FAILED, Cause.NODE_LOST, Exit.NODE_LOST, time.time(), who)
    command = f"launch resume {keeper.plan.run_id} {' '.join(f'--without {name}' for name in missed)}"
    text = f"{who}; they may go on where they are. If they are gone for good: {command}"
    return AttemptEnd(State.INTERRUPTED, Cause.NODE_LOST, Exit.NODE_LOST, time.time(), text)


def propose(keeper: KeeperState, there: Mapping[int, KeeperStatus], cause: Cause | None) -> int | None:
    """Open the next attempt of a run that this host leads; return its number, or None if too few hosts agree."""
    elected = elect(keeper, there, leads=True)
    return open_next(keeper, elected, cause, leads=True) if elected is not None else None


@dataclass(frozen=True)
class Elected:
    """The right to open an attempt with this number on these other hosts."""

    number: int
    others: tuple[int, ...]


def elect(keeper: KeeperState, there: Mapping[int, KeeperStatus], *, leads: bool) -> Elected | None:
    """Ask these hosts for their votes; return None if too few give them. On a shared disk nobody votes."""
    used = max(attempt.number for attempt in attempts(keeper.run))
    if not keeper.plan.disks_apart:
        return Elected(used + 1, tuple(there))
    number = keeper.stand(max([used, *(one.promised for one in there.values())]))
    records = keeper.ballot.records()
    asked = Vote(number, keeper.node, RecordsSaid(records.attempt, records.length, records.digest))
    others = tuple(granted(keeper.rpc.ask(asked, there)))
    if not enough(keeper, others, leads=leads):
        return None
    keeper.open(number, [keeper.node, *others])
    return Elected(number, others)


def open_next(keeper: KeeperState, elected: Elected, cause: Cause | None, *, leads: bool) -> int | None:
    """Have the attempt accepted that this host was elected for; return its number, or None if too few do."""
    bad = {blame.host for blame in avoided(keeper.run)}
    names = [keeper.rpc.peer(number).host for number in elected.others]
    here = [keeper.host, *sorted(names, key=lambda name: name in bad)]
    away = [name for name in keeper.first_nodes if name not in here]
    plan = reseated(keeper.plan, keeper.first_nodes, here, away)
    if keeper.plan.disks_apart:
        make_dir(keeper.run.attempt(elected.number - 1).path)  # numbers in between had votes, and are used up
    attempt, _ = new_attempt(keeper.run, plan.cluster, "requeue", cause, plan, secret=keeper.secret)
    if keeper.plan.disks_apart:
        copy_records(keeper.run, keeper.attempt, keeper.rpc, elected.others)
    said = keeper.opening(attempt.number, here, cause, away)
    took = granted(keeper.rpc.ask(said, elected.others))
    if keeper.plan.disks_apart and not enough(keeper, took, leads=leads):
        _take_back(attempt)
        return None
    keeper.starts_from = ranks_end(keeper, took, leads=leads)
    if keeper.plan.disks_apart:
        keeper.settle(attempt.number)
        keeper.rpc.ask(Settled(attempt.number, keeper.node), took)  # a host that misses it is told again
    missing = [keeper.rpc.peer(number).host for number in elected.others if number not in took]
    if missing:
        text = f"attempt {attempt.number} goes on without {', '.join(missing)}"
        append_line(keeper.run.events, Event(time.time(), attempt.number, "hosts", text))
    return attempt.number


def ranks_end(keeper: KeeperState, took: Collection[int], *, leads: bool) -> float:
    """Return the moment from which no ranks of this attempt run on hosts that have not taken up the next one.

    A leader that was replaced has ended its own ranks before anyone was elected.
    """
    if not (keeper.ready.began and keeper.plan.disks_apart):
        return 0.0
    last = readable(keeper.run.state, RunState)
    known = last.nodes if last is not None and last.attempt == keeper.attempt.number else ()
    ended = {node.host for node in known if node.state in ("lost", "waiting")}
    ended |= {keeper.host, *(() if leads else (keeper.leader,)), *(keeper.rpc.peer(number).host for number in took)}
    all_ended = {node.host for node in keeper.plan.nodes} <= ended
    return may_start_from(boottime(), keeper.plan.spec.recovery.lease_s, all_ended=all_ended)


def _take_back(attempt: AttemptDir) -> None:
    """Remove an attempt that too few hosts took up; its folder stays, so that its number is not given again."""
    attempt.intent.unlink()
    attempt.plan.unlink()
