"""A host's part where it does not lead: its agent, and readiness to take the run over when the leader is gone."""

import time

from launcher.clusters.keeping.agent_processes import RETURN_AT_ONCE_S, AgentProcesses
from launcher.clusters.keeping.attempt_end import cancelled, is_cancelled, write_end, write_failure
from launcher.clusters.keeping.wakeup import Wakeup
from launcher.clusters.ssh.host.keeper_rpc import Ask, KeeperStatus, Promise, granted, statuses
from launcher.clusters.ssh.host.keeper_state import KeeperState
from launcher.clusters.ssh.host.leader import enough, propose, tell_others
from launcher.errors import Exit, Fenced
from launcher.rundir.attempts import attempts, newest
from launcher.rundir.avoided import avoid
from launcher.rundir.durable import read_record
from launcher.rundir.records import AttemptEnd, Blame
from launcher.words import Cause, State

_SURE_S = 8.0
_LOOK_S = 0.5
_ASK_S = 1.0  # who does not answer may be the one that is gone
_GIVE_UP_WAITS = 5


class Follower:
    """One attempt of a keeper that does not lead."""

    def __init__(self, seat: KeeperState, bell: Wakeup) -> None:
        self._seat, self._bell = seat, bell
        self._post = seat.agent_process()
        self._crew = AgentProcesses([self._post], bell, leads=False, return_s=RETURN_AT_ONCE_S)
        self._sure_at: float | None = None
        self._succession = TakeOver(seat)
        self._leader = leader_of(seat)
        self._leader_heard_at = time.monotonic()

    def carry_out(self) -> int | None:
        """Until the attempt has ended; gives the number of the one that follows, or None where none does."""
        self._crew.start()
        try:
            return self._keep()
        finally:
            self._crew.end()

    def _keep(self) -> int | None:
        seat = self._seat
        while True:
            if self._bell.stop_asked and self._sure_at is None:  # before we wait: its ring may have been heard already
                self._sure_at = time.monotonic() + seat.plan.spec.recovery.grace_s + _SURE_S
                seat.take_over_stop()
                self._crew.signal_first()
            self._crew.watch(self._next_look(), bring_back=self._sure_at is None and not seat.leaderless)
            if (following := self._following()) is not None:
                return following
            if not self._crew.all_gone(for_good=True):
                self._leader_heard_at = time.monotonic()
            if self._post.misses_coordinator():
                self._succession.open()
            if self._is_over() or self._is_deserted():
                return None
            if self._sure_at is not None and (self._crew.all_gone(for_good=True) or time.monotonic() >= self._sure_at):
                self._stopped()
                return None
            if seat.leaderless and (taken := self._succession.look()) is not None:
                return taken

    def _next_look(self) -> float | None:
        """An agent that has left for good leaves us with nothing to wait for but a word of the leader's."""
        if self._sure_at is not None:
            return self._sure_at
        waits = self._seat.leaderless or self._crew.all_gone(for_good=True)
        return time.monotonic() + _LOOK_S if waits else None

    def _following(self) -> int | None:
        """The attempt that was proposed to us, or that is on the disk that all share."""
        seat = self._seat
        if seat.proposal is not None:
            return seat.proposal.intent.attempt
        if not seat.plan.disks_apart:
            last = newest(seat.run)
            if last is not None and last.number > seat.attempt.number and last.plan.exists():
                return last.number
        return None

    def _is_over(self) -> bool:
        end = read_record(self._seat.attempt.end, AttemptEnd)
        return end is not None and end.state.ended and self._crew.all_gone(for_good=True)

    def _is_deserted(self) -> bool:
        """Our agent was told that the attempt is over, and the leader, who would say what follows, is gone."""
        over = self._crew.all_gone(for_good=True) and self._post.last is not None and self._post.last == Exit.OK
        if not over:
            return False
        seat = self._seat
        leader = seat.council.ask_one(Ask(), self._leader, _ASK_S)
        if isinstance(leader, KeeperStatus):
            self._leader_heard_at = time.monotonic()
            if leader.attempt > seat.attempt.number and seat.proposal is None:
                raise Fenced(f"attempt {leader.attempt} goes on without {seat.host}")
        return time.monotonic() > self._leader_heard_at + seat.plan.spec.recovery.lease_s

    def _stopped(self) -> None:
        """Ended here by somebody who may not have reached the leader."""
        seat = self._seat
        if seat.plan.disks_apart and is_cancelled(seat.attempt):
            write_end(seat.run, seat.attempt, cancelled(), seat.plan)


def leader_of(seat: KeeperState) -> int:
    """Its number among the keepers."""
    first = seat.plan.nodes[0].host
    return next(number for number in seat.council.others if seat.council.peer(number).host == first)


class TakeOver:
    """What those do that hear no leader: find it again, follow another, or take the run over."""

    def __init__(self, seat: KeeperState) -> None:
        self._seat = seat
        self._give_up_at = 0.0
        self._end: AttemptEnd | None = None  # as we have said it: the failure counts once

    def open(self) -> None:
        if not self._seat.leaderless:
            self._give_up_at = time.monotonic() + _GIVE_UP_WAITS * self._seat.patience_s
        self._seat.leaderless = True

    def look(self) -> int | None:
        """The leader is back, or somebody before us in line is there; else it is ours to take over."""
        seat = self._seat
        answers = statuses(seat.council.ask(Ask(), limit_s=_ASK_S))
        led = [one.attempt for one in answers.values() if one.leads]
        if led and max(led) > seat.attempt.number and seat.proposal is None:
            raise Fenced(f"attempt {max(led)} goes on without {seat.host}")
        if led and max(led) == seat.attempt.number:
            seat.leaderless = False
            return None
        answers = {number: one for number, one in answers.items() if number in seat.counted}
        without = sorted(number for number, one in answers.items() if one.leaderless)
        if any(number < seat.node for number in seat.members.intersection(without)) or len(without) < len(answers):
            return None  # theirs to do, or there are some that hear a leader
        if enough(seat, without, leads=False):
            return self._take_over(without)
        if time.monotonic() > self._give_up_at:
            there, size = len(without) + 1, len(seat.counted)
            text = f"the leader is lost, and only {there} of {size} hosts are left to decide; launch resume goes on"
            end = AttemptEnd(State.FAILED, Cause.NODE_LOST, Exit.NODE_LOST, time.time(), text)
            write_end(seat.run, seat.attempt, end, seat.plan)
        return None

    def _take_over(self, others: list[int]) -> int | None:
        """With the promise of a majority that nobody of the old attempt writes any more."""
        seat = self._seat
        number = 1 + max(attempt.number for attempt in attempts(seat.run))
        if not seat.stand(number):
            return None
        promised = granted(seat.council.ask(Promise(number, seat.node), others))
        if not enough(seat, promised, leads=False):
            return None
        end = self._end = self._end or self._speak_for_the_lost(len(promised) + 1)
        if end.state is State.QUEUED:
            return propose(seat, promised, end.cause, leads=False)
        tell_others(seat, promised)
        return None

    def _speak_for_the_lost(self, together: int) -> AttemptEnd:
        seat, lost = self._seat, self._seat.plan.nodes[0].host
        text = f"{lost}, which led, is lost: {seat.host} takes over with {together} of {len(seat.counted)} hosts"
        evidence = f"no answer for {seat.plan.spec.recovery.lease_s:g} s"
        end = write_failure(seat.run, seat.attempt, seat.plan, Cause.NODE_LOST, text, evidence=evidence)
        until = end.ended_at + seat.plan.spec.recovery.avoid_s
        avoid(seat.run, [Blame(lost, text, seat.attempt.number, end.ended_at, until)])
        return end
