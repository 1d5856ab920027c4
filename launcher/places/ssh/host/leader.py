"""The leader's part of an attempt: the coordinator's agent, the records for all, and the attempt that follows. The
leader is the host of a pool whose coordinator decides on restarts, and the voters are the hosts that elect it.
"""

import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from math import inf
from pathlib import Path

from msgspec import structs

from launcher.clock import WakingClock, boottime
from launcher.coordinator.history_copies import ANNOUNCED, HistoryCopies
from launcher.coordinator.verdict import RESTART
from launcher.errors import Exit
from launcher.places.ssh.host.attempt_on_host import reseated
from launcher.places.ssh.host.late_messages import GIVE_UP_WAITS
from launcher.places.ssh.host.record_copies import EVENTS, EVERY_S, RecordReplicator, copy_records, history_of
from launcher.places.ssh.host.supervisor_messages import (
    Ask,
    RecordsSaid,
    Settled,
    SupervisorStatus,
    Vote,
    granted,
    statuses,
)
from launcher.places.ssh.host.supervisor_rpc import HEAR_S
from launcher.places.ssh.host.supervisor_state import SupervisorState
from launcher.places.ssh.quorum.core import may_start_from
from launcher.plan.model import Plan
from launcher.plan.on_hosts import least_hosts
from launcher.run.attempts import attempts, new_attempt
from launcher.run.avoided import avoid, avoided
from launcher.run.durable import append_line, make_dir, read_lines, readable
from launcher.run.layout import AttemptDir, RunDir
from launcher.run.patience import waiting_for_disks
from launcher.run.records import NODE_UNFIT, AttemptEnd, Event, Exclusion, Failure, RunState
from launcher.run.shared_event import SharedEvent
from launcher.states import Cause, State
from launcher.supervisor.agent_processes import AdoptedAgent, AgentProcess
from launcher.supervisor.allocation import Allocation, StopSignal
from launcher.supervisor.attempt_end import announce_end, ask_to_stop, cut_short, write_end
from launcher.supervisor.wakeup import Wakeup

_AGAIN_S = 1.0
_HEAR_S = 1.0
_UNSET_S = 0.05  # between looks for records of a coordinator that sets the event of a supervisor before this one


class HostWatch:
    """A thread of the leader that asks the other hosts for their state at intervals.

    Later attempts avoid hosts that did not answer for a lease (`recovery.lease` of the spec). A voter that answers
    again, and has not accepted the present attempt yet, is sent the message to join this attempt.
    """

    def __init__(self, supervisor: SupervisorState, wakeup: Wakeup, clock: Callable[[], float] = boottime) -> None:
        self.outvoted = False
        self._supervisor, self._wakeup = supervisor, wakeup
        self._clock = WakingClock(clock)  # what this process has slept through was no silence of theirs
        self._heard_at = dict.fromkeys(supervisor.rpc.others, self._clock.now())
        self._silent: frozenset[int] = frozenset()
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._work, name="hearing", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop the thread that watches, and wait until it has ended."""
        self._over.set()
        self._thread.join()

    def _work(self) -> None:
        """Ask the hosts for their state at intervals, and act on the answers (`look`), until `close` is called."""
        with waiting_for_disks():
            while not self._over.wait(HEAR_S):
                self.look()

    def look(self) -> None:
        """Ask all hosts for their state, and act on the answers: later attempts avoid hosts that have been silent for a
        lease, and voters that came back are sent the message to join the present attempt.

        If a host has voted for a newer attempt before ranks have started in this one, this attempt is stopped, so that
        another follows.
        """
        supervisor, now = self._supervisor, self._clock.now()
        there = statuses(supervisor.rpc.ask(Ask(), limit_s=HEAR_S))
        number = supervisor.attempt.number
        self._heard_at |= {one: now for one, status in there.items() if status.attempt == number}
        lease_s = supervisor.plan.spec.recovery.lease_s
        silent = frozenset(one for one, at in self._heard_at.items() if at < self._clock.now() - lease_s)
        avoid_silent(supervisor, silent - self._silent)
        self._silent = silent
        if supervisor.plan.disks_apart:
            supervisor.accepted_by |= {one for one, status in there.items() if status.accepted == number}
            send_attempt(supervisor, there)
            if not self.outvoted and is_outvoted(supervisor, there):
                ask_to_stop(supervisor.attempt, RESTART)
                self.outvoted = True
                self._wakeup.wake()


def is_outvoted(supervisor: SupervisorState, there: Mapping[int, SupervisorStatus]) -> bool:
    """Return whether the present attempt has not started any ranks, and one of the hosts in `there` has voted for a
    newer attempt.

    That host takes no records of the present attempt, so that its agent would never find the coordinator.
    """
    last, number = readable(supervisor.run.state, RunState), supervisor.attempt.number
    started = last is not None and last.attempt == number and last.generation > 0
    return not started and any(one.voted_for > number for one in there.values())


class LeaderStop(StopSignal):
    """The request to end the leader's attempt: by SIGTERM, or because the attempt is outvoted, and another one follows.
    It is outvoted if a host has voted for a newer attempt before ranks have started in this one.
    """

    def __init__(self, wakeup: Wakeup, attempt: AttemptDir, before: AttemptDir | None, hosts: HostWatch) -> None:
        super().__init__(wakeup, attempt, before)
        self._hosts = hosts

    def to_end(self) -> bool:
        """Return True once a stop was requested or the attempt is outvoted."""
        return super().to_end() or self._hosts.outvoted


def send_attempt(supervisor: SupervisorState, there: Mapping[int, SupervisorStatus]) -> None:
    """Send the attempt that this host leads to the voters that have not accepted it yet, such as those that were lost
    and are back; each accepts it once it has the history. Inform the hosts that have accepted it that it is settled:
    enough voters have accepted it.

    `there` has the states of the hosts that answer, by number; hosts that are in another attempt are left out.
    """
    number, voters = supervisor.attempt.number, supervisor.ballot.voter.newest.voters
    here = {one: status for one, status in there.items() if status.attempt == number}
    late = [one for one, status in here.items() if one in voters and status.accepted < number]
    if late and (said := supervisor.running_attempt()) is not None:
        supervisor.rpc.ask(said, late, HEAR_S)
    if unsettled := [one for one, status in here.items() if status.accepted == number and not status.settled]:
        supervisor.rpc.ask(Settled(number, supervisor.node), unsettled, HEAR_S)


def avoid_silent(supervisor: SupervisorState, gone: Collection[int]) -> None:
    """Have this run's next attempts avoid the hosts in `gone` (their numbers), which are silent, from now on for the
    time that the spec gives (`recovery.avoid`; 0: not at all). Hosts that are not in the present attempt are left out.
    """
    recovery, number, now = supervisor.plan.spec.recovery, supervisor.attempt.number, time.time()
    text = f"no answer for {recovery.lease_s:g} s"
    here = {node.host for node in supervisor.plan.nodes if node.index not in supervisor.plan.away}
    names = [name for one in sorted(gone) if (name := supervisor.rpc.peer(one).host) in here]
    if names and recovery.avoid_s:
        avoid(supervisor.run, [Exclusion(name, text, number, now, now + recovery.avoid_s) for name in names])


class Leader:
    """The leader's work for one attempt, from the start of the coordinator's agent until the run ends or the next
    attempt is opened.
    """

    def __init__(self, supervisor: SupervisorState, wakeup: Wakeup) -> None:
        self._supervisor, self._wakeup = supervisor, wakeup
        self._replicator: RecordReplicator | None = None
        self._records_due: SharedEvent | None = None
        self._histories: dict[str, AgentProcess] = {}  # by their names on the wire: who has the coordinator

    def carry_out(self) -> int | None:
        """Run the attempt until it has ended; return the number of the next attempt.

        Return None if the run has ended, this host was stopped, or another host leads the run now.
        """
        supervisor = self._supervisor
        records_due = self._records_due = SharedEvent() if supervisor.plan.disks_apart else None
        agent = self._histories[EVENTS] = supervisor.agent(records_due)
        if supervisor.plan.disks_apart:
            voters = supervisor.ballot.voter.newest.voters - {supervisor.node}
            self._replicator = RecordReplicator(
                supervisor.run, supervisor.attempt, supervisor.rpc, supervisor.role_names,
                voters=voters, accepted=lambda: supervisor.accepted_by, copies=self._copies, records_due=records_due,
                every_s=_UNSET_S if isinstance(agent, AdoptedAgent) else EVERY_S,
            )  # fmt: skip
        hearing = HostWatch(supervisor, self._wakeup)
        over = False
        try:
            while (left_s := supervisor.starts_from - boottime()) > 0 and not self._wakeup.stop_asked:
                self._wakeup.wait(left_s)
            supervisor.coordinator_due_at = boottime()
            stop = LeaderStop(self._wakeup, supervisor.attempt, supervisor.here.before, hearing)
            end = Allocation(
                supervisor.run, supervisor.attempt, supervisor.plan, self._wakeup, stop, [agent],
                prepare=partial(end_as_announced, supervisor), agents_of=self._role_agents, write=self._write_end,
            ).carry_out()  # fmt: skip
            supervisor.place = agent.place
            exclude_lost_hosts(supervisor)
            if end.state is State.QUEUED:
                supervisor.ready.retake()
            if end.state.ended:
                supervisor.ready.give_back()
            over = end.state.ended and not self._wakeup.stop_asked  # a stop is sent to all hosts by its sender
            if end.state is not State.QUEUED or end.exit_code == Exit.FENCED:
                return None
        finally:
            supervisor.coordinator_due_at = inf
            hearing.close()
            missed = self._replicator.close() if self._replicator is not None else ()
            supervisor.to_be_told = missed if over else ()
        self._wakeup.wait(end.delay_s)
        if self._wakeup.stop_asked:
            self._end_stopped(end)
            return None
        return self._follow(end)

    def _write_end(self, end: AttemptEnd, failure: Failure | None) -> AttemptEnd:
        """Write how the attempt ends, and return that. If hosts copy the history, an end by which the run has succeeded
        or failed is announced in it first, and written only once half of the voters have the announcement. If they do
        not have it within one lease, write no end and return it as QUEUED: another attempt follows, which ends the run.

        An end that was announced before is written instead of `end`. `failure` is the one that the run's state then
        shows; with None it keeps the one that it shows, unless the run has succeeded.
        """
        supervisor, copies = self._supervisor, self._histories[EVENTS].copies()
        if end.state in ANNOUNCED and self._records_due is not None and copies is not None:
            end = announced_end(supervisor) or announce_end(supervisor.run, supervisor.attempt, end)
            self._records_due.set()
            if not copies.await_half(supervisor.run.events.stat().st_size, supervisor.plan.spec.recovery.lease_s):
                return structs.replace(end, state=State.QUEUED, message=f"too few voters have the end: {end.message}")
        write_end(supervisor.run, supervisor.attempt, end, supervisor.plan, failure)
        return end

    def _copies(self) -> dict[str, HistoryCopies]:
        """Return an object for each coordinator that runs, in which this supervisor sets how many bytes of the
        coordinator's history, its file of events, half of the voters have. The keys are the histories' names in
        messages between supervisors.
        """
        found = {name: agent.copies() for name, agent in [*self._histories.items()]}
        return {name: copies for name, copies in found.items() if copies is not None}

    def _role_agents(self, plan: Plan, attempt: AttemptDir) -> list[AgentProcess]:
        """Return the processes, not yet started, that this host runs for a role's attempt: the role's coordinator, then
        the agents of the role's nodes on this host. `plan` is the role's.
        """
        supervisor, run = self._supervisor, RunDir(Path(plan.run_dir))
        agents = supervisor.here.role_agents(
            supervisor.ready.gpus, supervisor.ready.fds, self._records_due, plan, attempt
        )
        for number in range(1, attempt.number):
            self._histories.pop(history_of(run.path.name, number), None)
        self._histories[history_of(run.path.name, attempt.number)] = agents[0]
        return agents

    def _follow(self, end: AttemptEnd) -> int | None:
        """Wait until so many hosts answer that the run may continue with them, a quorum and at least its smallest
        number of nodes, and open the next attempt with them; return its number. If another host has opened it
        meanwhile, return that number.

        Return None if the run ends instead, with its end written: a stop was requested, or for five times the spec's
        `recovery.wait` the hosts were too few. `end` is how this attempt has ended.
        """
        supervisor = self._supervisor
        give_up_at = time.monotonic() + GIVE_UP_WAITS * supervisor.patience_s
        while not self._wakeup.stop_asked:
            if supervisor.ballot.accepted is not None:
                return supervisor.ballot.accepted.attempt
            own, answers = supervisor.status(), statuses(supervisor.rpc.ask(Ask()))
            supervisor.check_lead(answers)
            supervisor.check_part_in(supervisor.ballot.outrun_by)  # of which the others may have left already
            there = {number: one for number, one in answers.items() if one.has_slots}
            if enough(supervisor, there, leads=True) and supervisor.ballot.is_next_in_line(own, there):
                following = propose(supervisor, there, end.cause)
                if following is not None:
                    return following
            supervisor.ballot.leaderless = True  # a host with newer records may lead
            if time.monotonic() > give_up_at:
                supervisor.here.end(too_few(supervisor, there, end.ended_at))
                send_end_to_others(supervisor)
                return None
            self._wakeup.wait(_AGAIN_S)
        self._end_stopped(end)
        return None

    def _end_stopped(self, end: AttemptEnd) -> None:
        """Write the end of the run, and send it to the other hosts, because a stop was requested after this attempt had
        ended, as `end` tells, and before the next one was opened.
        """
        self._supervisor.here.pass_on_stop()
        self._supervisor.here.end(cut_short(self._supervisor.attempt, "it was to start again", end.ended_at))
        send_end(self._supervisor)


def exclude_lost_hosts(supervisor: SupervisorState) -> None:
    """Exclude hosts from later attempts, for as long as `recovery.avoid` of the spec says: those whose disk has failed
    in this attempt, and those that were found unfit in it. Attempts that a user opens avoid them too.

    This host, which leads as long as it is up, is excluded only if it is unfit; then a user has to act.
    """
    number, recovery, now = supervisor.attempt.number, supervisor.plan.spec.recovery, time.time()
    said = [one for one in read_lines(supervisor.run.events, Event) if one.attempt == number]
    texts = {one.node: one.text for one in said if one.node and one.cause is Cause.DISK}
    texts |= {one.node: one.evidence for one in said if one.node is not None and one.kind == NODE_UNFIT}
    exclusions = [
        Exclusion(node.host, texts[node.index], number, now, now + recovery.avoid_s)
        for node in supervisor.plan.nodes
        if node.index in texts
    ]
    if exclusions and recovery.avoid_s:
        avoid(supervisor.run, exclusions)


def enough(supervisor: SupervisorState, others: Collection[int], *, leads: bool) -> bool:
    """Return whether a run may continue with this host and `others`: they are a quorum, so that the rest cannot
    continue without them, and at least as many as the run's smallest number of nodes.

    `leads` says that this host leads the run now: if the hosts share a disk, the leader is a quorum alone, and without
    it more than half of the hosts are needed.
    """
    return supervisor.ballot.carries(others, leads=leads) and len({*others, supervisor.node}) >= least_hosts(
        supervisor.plan
    )


def send_end(supervisor: SupervisorState) -> Sequence[int]:
    """Send how the attempt ended to the other hosts, each of which is tried once; return the numbers of those that did
    not accept it. If the hosts share a disk, nothing is sent, and the result is empty.
    """
    return (
        RecordReplicator(supervisor.run, supervisor.attempt, supervisor.rpc, supervisor.role_names).close()
        if supervisor.plan.disks_apart
        else ()
    )


def send_end_to_others(supervisor: SupervisorState) -> None:
    """Send to the other hosts how the attempt ended, and note in `to_be_told` those that did not accept it, so that
    another process informs them later.
    """
    supervisor.to_be_told = send_end(supervisor)


def too_few(supervisor: SupervisorState, there: Collection[int], since: float) -> AttemptEnd:
    """Return the end of an attempt that too few hosts can continue, for want of votes or of nodes. It names the missing
    hosts and what the user can do, and is not announced to the others, which may continue on their own.

    `there` are the numbers of the other hosts that answer, `since` is when the leader was lost, in seconds since 1970.
    """
    missed = [supervisor.rpc.peer(number).host for number in sorted(set(supervisor.rpc.others) - set(there))]
    last = readable(supervisor.run.state, RunState)
    step = (last.safe_checkpoint or last.checkpoint) if last is not None else None
    safe = "no checkpoint was told of" if step is None else f"the checkpoint of step {step} is the newest"
    at = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(since))
    who = f"{len(there) + 1} of its {len(supervisor.rpc.others) + 1} hosts answer, too few to continue: since {at} "
    who += f"{', '.join(missed) or 'too many'} did not; {safe}"
    command = " ".join([f"launch resume {supervisor.plan.run_id}", *(f"--without {name}" for name in missed)])
    text = f"{who}; they may still run on their own. If they are gone for good: {command}"
    return AttemptEnd(State.INTERRUPTED, Cause.NODE_LOST, Exit.NODE_LOST, time.time(), text)


def propose(supervisor: SupervisorState, there: Mapping[int, SupervisorStatus], cause: Cause | None) -> int | None:
    """Open the next attempt of a run that this host leads, on those of the hosts in `there` that agree. Return its
    number, or None if they and this host have too few votes, or too few nodes for the run.

    The keys of `there` are the numbers of the other hosts that answer; `cause` is why the present attempt ended.
    """
    elected = elect(supervisor, there)
    return open_next(supervisor, elected, cause, leads=True) if elected is not None else None


def announcement(supervisor: SupervisorState, *, before: int) -> Event | None:
    """Return the first event in the history by which the leader of an attempt with a number below `before` announced
    how the run ends, or None if there is none.

    Only attempts since the run was submitted, or last resumed by a user, count.
    """
    history, begun = read_lines(supervisor.run.events, Event), supervisor.ballot.begun
    return next((one for one in history if begun <= one.attempt < before and one.end is not None), None)


def announced_end(supervisor: SupervisorState) -> AttemptEnd | None:
    """Return how the run ends, as the history announces it up to the present attempt, or None if it announces none."""
    event = announcement(supervisor, before=supervisor.attempt.number + 1)
    return event.end if event is not None else None


def end_as_announced(supervisor: SupervisorState) -> AttemptEnd | None:
    """End the run if the leader of an earlier attempt announced how it ends: write that as the end of the present
    attempt, and return it. Return None if none announced it.

    This host leads the present attempt. Enough voters have accepted this attempt, with the announcement in its history,
    so that every later leader has the announcement too and ends the run in the same way.
    """
    run, attempt = supervisor.run, supervisor.attempt
    announced = announcement(supervisor, before=attempt.number)
    if announced is None or announced.end is None:
        return None
    events = [one for one in read_lines(run.events, Event) if one.attempt == announced.attempt]
    last = next((one for one in reversed(events) if one.kind == "failure"), None)
    cause = (last.cause if last is not None else None) or announced.end.cause
    failure = None
    if last is not None and cause is not None:
        failure = Failure(cause, last.text, last.attempt, last.generation, node=last.node, at=last.at)
    write_end(run, attempt, announced.end, supervisor.plan, failure)
    return announced.end


@dataclass(frozen=True)
class Elected:
    """The right to open attempt `number` on this host and `others`."""

    number: int
    others: tuple[int, ...]  # hosts that have voted for this one; on a shared disk, all that answer


def elect(supervisor: SupervisorState, there: Mapping[int, SupervisorStatus]) -> Elected | None:
    """Ask the hosts in `there`, by their numbers, for their votes. Return the right to open the next attempt, or None
    if it has accepted another host's attempt, or if this host and those that vote for it are no quorum or fewer than
    the run's smallest number of nodes.

    If the hosts share a disk, there is no vote, and the right is always returned.
    """
    used = max(attempt.number for attempt in attempts(supervisor.run))
    if not supervisor.plan.disks_apart:
        return Elected(used + 1, tuple(there))
    number = supervisor.stand(max([used, *(one.voted_for for one in there.values())]))
    if number is None:
        return None
    records = supervisor.ballot.records()
    asked = Vote(number, supervisor.node, RecordsSaid(records.attempt, records.length, records.digest))
    others = tuple(granted(supervisor.rpc.ask(asked, there)))
    if not enough(supervisor, others, leads=False) or not supervisor.open(number, [supervisor.node, *others]):
        return None
    return Elected(number, others)


def open_next(supervisor: SupervisorState, elected: Elected, cause: Cause | None, *, leads: bool) -> int | None:
    """Have the hosts accept the attempt for which this host was elected; return its number, or None if too few accept
    (see `enough`). Where all hosts share a disk, their consent is not needed.

    `cause` is why the present attempt ended, `leads` says that this host leads the run now.
    """
    bad = {exclusion.host for exclusion in avoided(supervisor.run)}
    names = [supervisor.rpc.peer(number).host for number in elected.others]
    here = [supervisor.host, *sorted(names, key=lambda name: name in bad)]
    away = [name for name in supervisor.first_nodes if name not in here]
    plan = reseated(supervisor.plan, supervisor.first_nodes, here, away)
    if supervisor.plan.disks_apart:
        make_dir(supervisor.run.attempt(elected.number - 1).path)  # numbers in between had votes, and are used up
    attempt, _ = new_attempt(supervisor.run, plan.cluster, "requeue", cause, plan, secret=supervisor.secret)
    if supervisor.plan.disks_apart:
        copy_records(supervisor.run, supervisor.attempt, supervisor.rpc, supervisor.role_names, elected.others)
    said = supervisor.opening(attempt.number, here, cause, away)
    took = granted(supervisor.rpc.ask(said, elected.others))
    if supervisor.plan.disks_apart and not enough(supervisor, took, leads=leads):
        _take_back(attempt)
        return None
    supervisor.starts_from = ranks_end(supervisor, took, leads=leads)
    if supervisor.plan.disks_apart:
        supervisor.settle(attempt.number)
        supervisor.accepted_by = frozenset(took)
        supervisor.rpc.ask(Settled(attempt.number, supervisor.node), took)  # it is sent again to a host that misses it
    missing = [supervisor.rpc.peer(number).host for number in elected.others if number not in took]
    if missing:
        text = f"attempt {attempt.number} continues without {', '.join(missing)}"
        append_line(supervisor.run.events, Event(time.time(), attempt.number, "hosts", text))
    return attempt.number


def ranks_end(supervisor: SupervisorState, took: Collection[int], *, leads: bool) -> float:
    """Return the time, in seconds since this host's boot, from which no ranks of the present attempt run on hosts that
    have not accepted the next one: now if these hosts are known to have ended their ranks, else a lease from now.

    That is known of this host, and of those that the coordinator's last record has as lost or without ranks. It is
    known of the present leader if that is another host (`leads` is False), because it ended its ranks before the next
    one was elected. `took` has the numbers of the hosts that have accepted the next attempt. Return 0.0, so that
    nothing is waited for, if the present attempt has not begun or the hosts share a disk.
    """
    if not (supervisor.ready.began and supervisor.plan.disks_apart):
        return 0.0
    last = readable(supervisor.run.state, RunState)
    of_one = not supervisor.plan.roles  # else hosts have ranks of which the main role's coordinator does not know
    known = last.nodes if of_one and last is not None and last.attempt == supervisor.attempt.number else ()
    ended = {node.host for node in known if node.state in ("lost", "waiting")}
    ended |= {
        supervisor.host,
        *((supervisor.leader,) if of_one and not leads else ()),
        *(supervisor.rpc.peer(number).host for number in took),
    }
    all_ended = {node.host for node in supervisor.plan.nodes} <= ended
    return may_start_from(boottime(), supervisor.plan.spec.recovery.lease_s, all_ended=all_ended)


def _take_back(attempt: AttemptDir) -> None:
    """Withdraw an attempt that too few hosts accepted: remove its intent and plan, without which nobody starts it. Its
    folder stays, so that its number is not used again.
    """
    attempt.intent.unlink()
    attempt.plan.unlink()
