"""The leader's part of an attempt: the coordinator's agent, the records for all, and the attempt that follows."""

import secrets
import threading
import time
from collections.abc import Collection, Mapping, Sequence
from math import inf

from launcher.clock import WakingClock, boottime
from launcher.clusters.ssh.host.attempt_on_host import reseated
from launcher.clusters.ssh.host.courier import GIVE_UP_WAITS
from launcher.clusters.ssh.host.keeper_messages import Ask, KeeperStatus, Members, Propose, granted, statuses
from launcher.clusters.ssh.host.keeper_state import KeeperState
from launcher.clusters.ssh.host.record_copies import RecordReplicator
from launcher.errors import Exit
from launcher.rundir.attempts import new_attempt
from launcher.rundir.avoided import avoid, avoided
from launcher.rundir.durable import append_line, make_dir, read_lines, readable, write_sealed
from launcher.rundir.layout import AttemptDir
from launcher.rundir.patience import waiting_for_disks
from launcher.rundir.records import NODE_UNFIT, AttemptEnd, Blame, Event, Rolls, RunState
from launcher.supervisor.allocation import Allocation, StopSignal
from launcher.supervisor.attempt_end import cut_short
from launcher.supervisor.wakeup import Wakeup
from launcher.words import Cause, State

_AGAIN_S = 1.0
_ROLL_S = 1.0


class Membership:
    """Who still counts: those that answered the leader within a lease. Changed only with the word of more than half.

    In two words: all who are to count, and before them our coordinator, agree to count by the old roll and by the new
    one; then the old one is forgotten. Who misses a word is told again. README.md says why that is safe.
    """

    def __init__(self, keeper: KeeperState) -> None:
        self._keeper = keeper
        self._clock = WakingClock()  # what we have slept through was no silence of theirs
        self._heard_at = dict.fromkeys(keeper.rpc.others, self._clock.now())
        self._version, self._said = 0, tuple[frozenset[int], ...]()
        self._guests = {node.host for node in keeper.plan.nodes if node.index in keeper.plan.away}
        self._blamed: frozenset[int] = frozenset()  # for the silence that they are in
        self._unsettled = frozenset(keeper.rpc.others)  # who may count by other rolls than we do
        self._word = Rolls("", ())  # to our coordinator
        self._told_coordinator(keeper.election.rolls)
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._work, name="roll", daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._over.set()
        self._thread.join()

    def _work(self) -> None:
        with waiting_for_disks():
            self._call_the_roll()

    def _call_the_roll(self) -> None:
        while not self._over.wait(_ROLL_S):
            now = self._clock.now()
            answers = self._keeper.rpc.ask(Ask(), limit_s=_ROLL_S)
            self._heard_at |= {
                number: now
                for number, one in answers.items()
                if isinstance(one, KeeperStatus) and one.attempt == self._keeper.attempt.number
                if self._keeper.rpc.peer(number).host not in self._guests
            }
            lease_s = self._keeper.plan.spec.recovery.lease_s
            silent_from = self._clock.now() - lease_s
            there = {number for number, at in self._heard_at.items() if at >= silent_from} | {self._keeper.node}
            self._count(frozenset(there))

    def _count(self, there: frozenset[int]) -> None:
        election = self._keeper.election
        if election.decides(there, leads=False):
            gone = election.counted - there
            self._blame(gone - self._blamed)
            self._blamed = gone
            members = election.roll_of(there, self._keeper.plan.nodes_min)
            if election.rolls != (members,):
                self._change(members)
            else:
                self._told_coordinator(election.rolls)
        if behind := self._unsettled & there:
            self._unsettled -= self._told(election.rolls, behind)

    def _change(self, members: frozenset[int]) -> None:
        election = self._keeper.election
        others, both = members - {election.me}, (*election.rolls, members)
        if not self._told_coordinator(both):
            return
        self._unsettled |= others
        if self._told(both, others) >= others:
            self._keeper.count_by(members)

    def _told_coordinator(self, rolls: tuple[frozenset[int], ...]) -> bool:
        """Whether ours counts by these already; else it is told, and looked at again when the roll is called next."""
        keeper = self._keeper
        if not keeper.plan.disks_apart:
            return True
        nodes = {keeper.election.hosts.index(node.host): node.index for node in keeper.plan.nodes}
        said = tuple(tuple(sorted(nodes[one] for one in roll)) for roll in rolls)
        if said != self._word.rolls:
            self._word = Rolls(secrets.token_hex(8), said)
        state = readable(keeper.run.state, RunState)
        if state is not None and state.counts_by == self._word.id:
            return True
        write_sealed(keeper.attempt.rolls, self._word)
        return False

    def _told(self, rolls: tuple[frozenset[int], ...], others: Collection[int]) -> frozenset[int]:
        """Return who has agreed to count by these; what is said again keeps its number, and is not written again."""
        self._version += rolls != self._said
        self._said = rolls
        word = Members(self._keeper.attempt.number, self._version, tuple(tuple(sorted(roll)) for roll in rolls))
        return frozenset(granted(self._keeper.rpc.ask(word, others)))

    def _blame(self, gone: frozenset[int]) -> None:
        """They are not used again for a while, here or by who resumes the run."""
        keeper, now = self._keeper, time.time()
        recovery = keeper.plan.spec.recovery
        text = f"not heard for {recovery.lease_s:g} s"
        number = keeper.attempt.number
        # Who has no part in this attempt has been blamed before.
        here = {node.host for node in keeper.plan.nodes} - self._guests
        names = [name for one in sorted(gone) if (name := keeper.rpc.peer(one).host) in here]
        if names and recovery.avoid_s:
            avoid(keeper.run, [Blame(name, text, number, now, now + recovery.avoid_s) for name in names])


class Leader:
    """One attempt of a keeper that leads."""

    def __init__(self, keeper: KeeperState, wakeup: Wakeup) -> None:
        self._keeper, self._wakeup = keeper, wakeup

    def carry_out(self) -> int | None:
        """Until the attempt has ended; gives the number of the one that follows, or None where none does."""
        keeper = self._keeper
        replicator = RecordReplicator(keeper.run, keeper.attempt, keeper.rpc) if keeper.plan.disks_apart else None
        roll = Membership(keeper)
        over = False
        keeper.coordinator_due_at = boottime()
        try:
            stop = StopSignal(self._wakeup, keeper.attempt, keeper.here.before)
            end = Allocation(keeper.run, keeper.attempt, keeper.plan, self._wakeup, stop, [keeper.agent()]).carry_out()
            blame_hosts(keeper)
            if end.state.ended:
                keeper.ready.give_back()
            over = end.state.ended and not self._wakeup.stop_asked  # whoever asks for a stop tells all hosts
            if end.state is not State.QUEUED or end.exit_code == Exit.FENCED:
                return None
        finally:
            keeper.coordinator_due_at = inf
            roll.close()
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
            answers = statuses(keeper.rpc.ask(Ask()))
            keeper.check_lead(answers)
            keeper.check_part_in(keeper.election.outrun_by)  # of which the others may have left already
            pass_over_promised(keeper, answers)
            there = [number for number, one in answers.items() if one.has_slots]
            if enough(keeper, there, leads=True):
                following = propose(keeper, there, end.cause, leads=True)
                if following is not None:
                    return following
            if time.monotonic() > give_up_at:
                text = f"{len(there) + 1} of its {len(keeper.rpc.others) + 1} hosts answer: too few to go on"
                keeper.here.end(AttemptEnd(State.FAILED, Cause.NODE_LOST, Exit.NODE_LOST, time.time(), text))
                tell_others(keeper)
                return None
            self._wakeup.wait(_AGAIN_S)
        self._stopped(end)
        return None

    def _stopped(self, end: AttemptEnd) -> None:
        """The last word where no attempt follows although one was due."""
        self._keeper.here.pass_on_stop()
        self._keeper.here.end(cut_short(self._keeper.attempt, "it was to start again", end.ended_at))
        tell(self._keeper)


def blame_hosts(keeper: KeeperState) -> None:
    """Hosts whose disks ended generations, and those that are unfit, come last in the next attempt, be it that a person
    opens it. Our own, which leads as long as it is there, only where it is unfit: then it is a person who has to."""
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


def enough(keeper: KeeperState, others: list[int], *, leads: bool) -> bool:
    """Whether with these a run may go on: nodes enough, and no part of the hosts without us could do the same."""
    return keeper.election.decides(others, leads=leads) and len({*others, keeper.node}) >= keeper.plan.nodes_min


def pass_over_promised(keeper: KeeperState, answers: Mapping[int, KeeperStatus]) -> None:
    """Numbers that were promised to others, of whom nothing came, are used up: our next one is above them."""
    promised = max((one.promised for one in answers.values()), default=0)
    if promised > keeper.attempt.number:
        make_dir(keeper.run.attempt(promised).path)


def tell(keeper: KeeperState) -> Sequence[int]:
    """How the attempt has ended, where they do not see it on a disk that all share; gives those that have not heard."""
    return RecordReplicator(keeper.run, keeper.attempt, keeper.rpc).close() if keeper.plan.disks_apart else ()


def tell_others(keeper: KeeperState) -> None:
    """And who was cut off is to hear it once it can be reached again."""
    keeper.to_be_told = tell(keeper)


def propose(keeper: KeeperState, others: list[int], cause: Cause | None, *, leads: bool) -> int | None:
    """Open the next attempt with ourselves as its leader and these others; gives its number, if enough take it up."""
    bad = {blame.host for blame in avoided(keeper.run)}
    names = [keeper.rpc.peer(number).host for number in others]
    here = [keeper.host, *sorted(names, key=lambda name: name in bad)]
    away = [name for name in keeper.first_nodes if name not in here]
    plan = reseated(keeper.plan, keeper.first_nodes, here, away)
    attempt, _ = new_attempt(keeper.run, plan.cluster, "requeue", cause, plan, secret=keeper.secret)
    took = granted(keeper.rpc.ask(Propose(attempt.number, tuple(here), cause, tuple(away)), others))
    if keeper.plan.disks_apart and not enough(keeper, took, leads=leads):
        _take_back(attempt)
        return None
    missing = [keeper.rpc.peer(number).host for number in others if number not in took]
    if missing:
        text = f"attempt {attempt.number} goes on without {', '.join(missing)}"
        append_line(keeper.run.events, Event(time.time(), attempt.number, "hosts", text))
    return attempt.number


def _take_back(attempt: AttemptDir) -> None:
    """What too few took up is no attempt; its folder stays, so that its number is not given again."""
    attempt.intent.unlink()
    attempt.plan.unlink()
