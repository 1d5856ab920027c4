"""Supervise an attempt on a host that does not lead it: run the host's agent, which starts its ranks, and take the run
over if the leader is lost."""

import time
from collections.abc import Mapping

from launcher.clock import boottime
from launcher.errors import Exit
from launcher.places.ssh.host.late_messages import GIVE_UP_WAITS
from launcher.places.ssh.host.leader import announced_end, announcement, elect, enough, open_next, too_few
from launcher.places.ssh.host.roles_on_host import RolesOnHost
from launcher.places.ssh.host.supervisor_messages import Ask, SupervisorStatus, statuses
from launcher.places.ssh.host.supervisor_rpc import HEAR_S
from launcher.places.ssh.host.supervisor_state import SupervisorState
from launcher.run.attempts import newest
from launcher.run.avoided import avoid
from launcher.run.durable import readable
from launcher.run.records import AttemptEnd, Exclusion, Failure
from launcher.states import Cause, State
from launcher.supervisor.agent_processes import AdoptedAgent, AgentProcesses, comes_back
from launcher.supervisor.allocation import SURE_S
from launcher.supervisor.attempt_end import announce_end, cancelled, is_cancelled, write_end, write_failure
from launcher.supervisor.wakeup import Wakeup

_LOOK_S = 0.5
_ROLES_S = 0.1  # a shared disk does not wake us


class Follower:
    """An attempt on a host that does not lead it: the host runs its agent and watches the leader."""

    def __init__(self, supervisor: SupervisorState, wakeup: Wakeup) -> None:
        self._supervisor, self._wakeup = supervisor, wakeup
        self._agent = supervisor.agent()
        self._agents = AgentProcesses([self._agent], wakeup, leads=False)
        self._roles = RolesOnHost(supervisor, self._agents)
        self._sure_at: float | None = None
        self._take_over = TakeOver(supervisor)
        self._leader = leader_of(supervisor)
        self._leader_heard_at = boottime()

    def carry_out(self) -> int | None:
        """Start the agent, unless the attempt only ends the run or this host voted for a newer one, and supervise it
        until the attempt has ended. Return the number of the next attempt, or None if the run has ended.

        Raise Fenced if the run continues without this host.
        """
        supervisor, number = self._supervisor, self._supervisor.attempt.number
        ends = announcement(supervisor, before=number) is not None  # the attempt was opened only to end the run
        if not (ends or supervisor.ballot.has_voted_past(number)):
            self._agents.start()  # else it would be a follower of a leader whose time may be over
        following = None
        try:
            following = self._run_agent()
        finally:
            self._agents.end(standbys_of=() if following is None else [self._agent])
        supervisor.place = self._agent.place
        return following

    def _run_agent(self) -> int | None:
        """Watch the agent and the leader until the attempt has ended, and start the agent again if it dies. Return the
        number of the next attempt, or None if the run has ended.
        """
        supervisor = self._supervisor
        while True:
            if self._wakeup.stop_asked and self._sure_at is None:  # before we sleep: it may have woken us already
                supervisor.here.pass_on_stop()
                self._wind_up()
            self._roles.look()
            has_left = supervisor.ballot.leaderless or supervisor.ballot.has_voted_past(supervisor.attempt.number)
            self._agents.watch(self._next_look(), bring_back=self._sure_at is None and not has_left)
            if (following := self._following()) is not None:
                return following
            if isinstance(self._agent, AdoptedAgent) and self._is_left() and self._sure_at is None:
                self._replace_adopted(self._agent)
            if not self._is_left():
                self._leader_heard_at = boottime()
            if self._agent.may_have_lost_coordinator() or self._is_leader_gone_too():
                self._take_over.open()
            supervisor.check_part_in(supervisor.ballot.outrun_by)
            if supervisor.has_ended() and self._sure_at is None:
                self._wind_up()  # its agent may have no connection to receive the end
            is_left = self._is_left() and self._roles.all_gone
            if self._sure_at is not None and (is_left or time.monotonic() >= self._sure_at):
                self._end_cancelled()
                return None
            if self._is_deserted():
                if self._agent.last == Exit.OK and self._is_over():  # no leader is left, nor needed
                    return None
                self._take_over.open()  # the agent left for a newer attempt, and misses no coordinator any more
            if supervisor.ballot.leaderless and (taken := self._take_over.look()) is not None:
                return taken

    def _replace_adopted(self, adopted: AdoptedAgent) -> None:
        """Replace the agent `adopted`, which an earlier supervisor started and which has exited, by an agent of this
        supervisor.

        The new agent is started unless the exit code of `adopted` says that all is done or a newer attempt took over.
        """
        self._agent = self._supervisor.agent()
        self._agent.last = adopted.last
        if adopted.last is not None and comes_back(adopted.last):
            self._agent.schedule_restart(time.monotonic())
        self._agents.drop([adopted])
        self._agents.add([self._agent])

    def _wind_up(self) -> None:
        """Ask the agent to exit, and set the time until which it is waited for: a little more than the grace period of
        its ranks from now.
        """
        self._sure_at = time.monotonic() + self._supervisor.plan.spec.recovery.grace_s + SURE_S
        self._agents.signal_first()

    def _is_left(self) -> bool:
        """Return whether this host's agent has no process now: it has exited, and has not been started again yet."""
        return self._agent.pid is None

    def _next_look(self) -> float | None:
        """Return the time of the next check, by time.monotonic, or None if only the agent's exit or a message matters:
        the agent runs, the leader is not lost, and the run has no roles.

        The records of a run with roles may be on a shared disk, whose changes nothing reports, so they are read at
        intervals. Once the agent was asked to exit because the run has ended, the time is that until which it may.
        """
        if self._sure_at is not None:
            return self._sure_at
        waits = self._supervisor.ballot.leaderless or self._is_left() or self._agent.killed_under_lease is not None
        if self._supervisor.plan.roles:
            return time.monotonic() + _ROLES_S
        return time.monotonic() + _LOOK_S if waits else None

    def _following(self) -> int | None:
        """Return the number of the next attempt, proposed to this host or opened on the shared disk, or None if there
        is none.
        """
        supervisor = self._supervisor
        if supervisor.ballot.accepted is not None:
            return supervisor.ballot.accepted.attempt
        if not supervisor.plan.disks_apart:
            last = newest(supervisor.run)
            if last is not None and last.number > supervisor.attempt.number and last.plan.exists():
                return last.number
        return None

    def _is_leader_gone_too(self) -> bool:
        """If the agent was killed, return whether the leader does not answer once the lease is over under which the
        agent was: until then the leader may count this host among its followers. Return False before that.
        """
        until = self._agent.killed_under_lease
        if until is None or boottime() < until:
            return False
        self._agent.killed_under_lease = None
        leader = self._supervisor.rpc.ask_one(Ask(), self._leader, HEAR_S)
        return not (isinstance(leader, SupervisorStatus) and leader.leads)

    def _is_deserted(self) -> bool:
        """Return whether the agent has exited and the leader, which would send the next attempt, has not answered for a
        whole lease. If the agent has exited, ask the leader once more; an answer that it has no leader itself does not
        count.
        """
        if not self._is_left():
            return False
        supervisor = self._supervisor
        leader = supervisor.rpc.ask_one(Ask(), self._leader, HEAR_S)
        if isinstance(leader, SupervisorStatus):
            if not leader.leaderless:  # else it waits for another leader
                self._leader_heard_at = boottime()
            supervisor.check_part_in(leader.attempt if leader.settled else 0)
        return boottime() > self._leader_heard_at + supervisor.plan.spec.recovery.lease_s

    def _is_over(self) -> bool:
        """Return whether this host knows that the run has ended or was cancelled. If its end was only announced, write
        that. Return True also if the hosts share a disk and no record there says that another attempt follows.
        """
        supervisor = self._supervisor
        end, announced = readable(supervisor.attempt.end, AttemptEnd), announced_end(supervisor)
        if end is not None and end.state is State.QUEUED:
            return False
        if end is None and announced is not None:
            write_end(supervisor.run, supervisor.attempt, announced, supervisor.plan)
        ended = end is not None or announced is not None or is_cancelled(supervisor.attempt)
        return ended or not supervisor.plan.disks_apart

    def _end_cancelled(self) -> None:
        """Write to this host's disk that the run was cancelled, if a user has cancelled it here and this disk has no
        end of it yet. Do nothing if the hosts share a disk.
        """
        supervisor = self._supervisor
        if supervisor.plan.disks_apart and is_cancelled(supervisor.attempt) and not supervisor.has_ended():
            supervisor.here.end(cancelled())


def leader_of(supervisor: SupervisorState) -> int:
    """Return the number of the host that leads the present attempt, by which `supervisor.rpc` knows its supervisor.

    It is the host of node 0, and another one than this host.
    """
    first = supervisor.plan.nodes[0].host
    return next(number for number in supervisor.rpc.others if supervisor.rpc.peer(number).host == first)


class TakeOver:
    """The search for a leader after the present one is lost: the old leader again, another host, or this host itself.
    Call `open` when the leader is lost, then `look` repeatedly, as long as this host counts as leaderless.
    """

    def __init__(self, supervisor: SupervisorState) -> None:
        self._supervisor = supervisor
        self._give_up_at, self._since = 0.0, time.time()
        self._end: AttemptEnd | None = None  # as this host has written it: the failure counts once

    def open(self) -> None:
        """Record that the leader is lost; if it was not recorded yet, the time for which a new one is sought begins."""
        if not self._supervisor.ballot.leaderless:
            self._since = time.time()
            self._give_up_at = time.monotonic() + GIVE_UP_WAITS * self._supervisor.patience_s
            self._supervisor.rpc.suspect(self._supervisor.leader)
        self._supervisor.lose_leader()

    def look(self) -> int | None:
        """Ask all hosts for their state; follow the leader if it is back, wait if another host is next in line, or else
        take over. Raise Fenced if the run continues without this host.

        Return the number of the next attempt if this host has opened it by taking over, else None. The attempt's end is
        written on this host if too few hosts answer to take over, and either none has answered for a lease and
        `recovery.wait`, or this host has looked in vain for GIVE_UP_WAITS times `recovery.wait`.
        """
        supervisor = self._supervisor
        own, answers = supervisor.status(), statuses(supervisor.rpc.ask(Ask(), limit_s=HEAR_S))
        supervisor.check_part_in(max((one.attempt for one in answers.values() if one.leads), default=0))
        rules = supervisor.plan.spec.recovery
        answers = supervisor.ballot.without_dead_leaders(answers, supervisor.attempt.number, rules.lease_s / 2)
        if any(one.leads and one.attempt == supervisor.attempt.number for one in answers.values()):
            supervisor.leader_answered()
            return None
        answers = {number: one for number, one in answers.items() if one.has_vote}
        without = {number: one for number, one in answers.items() if one.leaderless}
        is_next = supervisor.ballot.is_next_in_line(own, without)
        # hosts that accepted an attempt of this host which too few others accepted; they wait for this host to lead
        without |= {number: one for number, one in answers.items() if one.led_by == supervisor.host}
        if not is_next or len(without) < len(answers):
            return None  # another host's turn, or some hosts still have a leader
        if supervisor.status().has_vote and enough(supervisor, without, leads=False):
            return self._take_over(without)
        if supervisor.rpc.all_gone(rules.lease_s + supervisor.patience_s) or time.monotonic() > self._give_up_at:
            supervisor.here.end(too_few(supervisor, without, self._since))
        return None

    def _take_over(self, others: Mapping[int, SupervisorStatus]) -> int | None:
        """Ask the other hosts for votes and, with those of more than half, open the next attempt under this host; the
        old attempt can write no more then. Return the next attempt's number, or None if too few vote for this host.

        The run may have to end: because the leader had announced its end to the other hosts, or because no restart is
        left after the loss of the leader. Then the next attempt only writes this end. On a shared disk the end is
        written without a next attempt, and None is returned.
        """
        supervisor = self._supervisor
        elected = elect(supervisor, others)
        if elected is None:
            return None
        announced = announced_end(supervisor)
        end = self._end = announced or self._end or self._write_failure(len(elected.others) + 1)
        if end.state is not State.QUEUED:
            if not supervisor.plan.disks_apart:
                return None
            if announced is None:
                announce_end(supervisor.run, supervisor.attempt, end)
        return open_next(supervisor, elected, end.cause, leads=False)

    def _write_failure(self, together: int) -> AttemptEnd:
        """Write the loss of the leader as a failure to the history and the state, and return the end of the attempt
        that follows from it; `together` is the number of connected hosts.

        The end record is written too, unless the run ends with it and each host has its own disk: then the other hosts
        have to know of the end first.
        """

        def write(end: AttemptEnd, failure: Failure) -> AttemptEnd:
            """Write the end, unless other hosts have to have its announcement before."""
            if end.state is State.QUEUED or not supervisor.plan.disks_apart:
                write_end(supervisor.run, supervisor.attempt, end, supervisor.plan, failure)
            return end

        supervisor, lost = self._supervisor, self._supervisor.leader
        hosts = len(supervisor.plan.nodes) - len(supervisor.plan.away)
        text = f"{lost}, which led, is lost: {supervisor.host} takes over with {together} of {hosts} hosts"
        if lost == supervisor.host:
            text = f"{lost} was lost, and leads again with {together} of {hosts} hosts"
        evidence = f"no answer for {supervisor.plan.spec.recovery.lease_s:g} s"
        end = write_failure(
            supervisor.run, supervisor.attempt, supervisor.plan, Cause.NODE_LOST, text, evidence=evidence, write=write
        )
        until = end.ended_at + supervisor.plan.spec.recovery.avoid_s
        if lost != supervisor.host:
            avoid(supervisor.run, [Exclusion(lost, text, supervisor.attempt.number, end.ended_at, until)])
        return end
