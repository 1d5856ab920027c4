"""Supervise a run on a host that was lost: restarted there, it takes part in the attempt that continues.

If only the earlier supervisor was killed, the host's agent, which starts the ranks, still runs. The new supervisor then
adopts it, and leads the attempt again if that agent runs the coordinator and this host voted for no other leader.
Without a running agent it never leads an attempt again that had begun. If no host leads the run and enough of them are
up, some of which may have come back themselves, it takes part in the election of a leader; if too few are up for
`recovery.wait`, it exits. If the run has not begun yet, it waits with the others for the hosts that the run needs. Its
newest vote is in voter.json, and it listens at the address that the others know.
"""

import time
from contextlib import suppress
from typing import BinaryIO

from launcher.errors import Exit, Fenced, LaunchError
from launcher.places.ssh.host import presence
from launcher.places.ssh.host.follower import TakeOver, leader_of
from launcher.places.ssh.host.host_supervisor import carry_on, slots_for, to_its_end, wait_and_run
from launcher.places.ssh.host.leader import enough
from launcher.places.ssh.host.supervisor_messages import (
    Ask,
    OpenAttempt,
    Rejoin,
    Returning,
    SupervisorStatus,
    statuses,
)
from launcher.places.ssh.host.supervisor_rpc import WIRE, SupervisorRpc
from launcher.places.ssh.host.supervisor_state import SlotsLost, SupervisorState
from launcher.places.ssh.messages import Opened, Peer
from launcher.places.ssh.quorum.core import may_vote_from
from launcher.remote.rpc.wire import encoded
from launcher.run.attempts import attempts, newest
from launcher.run.durable import read_record
from launcher.run.fence import fence
from launcher.run.patience import say
from launcher.supervisor.agent_processes import AdoptedAgent
from launcher.supervisor.strategy import Strategy
from launcher.supervisor.wakeup import Wakeup
from launcher.wire.frames import wire_key

_AGAIN_S = 1.0


class ReturningSupervisor(Strategy):
    """The supervisor on a host that returns to a run.

    Its argument ATTEMPT is the attempt with which the run's supervisors were started.
    """

    def boot(self) -> bytes:
        """Listen at the address and port of this host's earlier supervisor, and return a line with that port for the
        process that started this one. Raise LaunchError if the attempt's records do not say which host this is.
        """
        number = int(self.words[0])
        attempt = self.run.attempt(number)
        mine, peers = presence.taken(attempt), read_record(attempt.supervisors, tuple[Peer, ...])
        if mine is None or peers is None:
            raise LaunchError(f"{attempt.path}: does not say as whom this host takes part")
        self._supervisor, self._wakeup, self._gpus = SupervisorState(self.run, number, mine.node), Wakeup(), mine.gpus
        self._supervisor.returning, self._supervisor.accepted_by = True, frozenset()
        key = wire_key(self._supervisor.secret, WIRE, self._supervisor.plan.run_id, number)
        me = peers[mine.node]
        self._supervisor.rpc = SupervisorRpc(me.address, key, self._supervisor.answering(self._wakeup), me.port)
        self._supervisor.rpc.join(peers, mine.node)
        return encoded(Opened(self._supervisor.rpc.port))

    def supervise(self, go: BinaryIO) -> int:
        """Take part in the run until it ends or no host continues it; return the exit code. `go` is closed at once, as
        no message to begin is awaited.
        """
        go.close()
        return to_its_end(self._supervisor, lambda: come_back(self._supervisor, self._wakeup, self._gpus))


def come_back(supervisor: SupervisorState, wakeup: Wakeup, gpus: tuple[str, ...]) -> int:
    """Wait until this host can take part in the run again, take part to its end, and return the supervisor's exit code.

    That needs another host that leads, and free slots on this one; until then this host holds no slots, unless its
    earlier agent still runs in them. If the run has not begun because it waits for its hosts, this one waits with them.
    If the others cannot continue without this host, it takes part in the election of a leader.

    `gpus` are the host's GPUs that may be used; `wakeup` ends waits early, for instance when a stop is asked for.
    The exit code is OK also if the run is over, a stop is asked for, or nobody continues the run in time.
    """
    rules, slots, led_at = supervisor.plan.spec.recovery, slots_for(supervisor.plan, gpus), time.monotonic()
    while not wakeup.stop_asked and time.monotonic() < led_at + rules.lease_s + rules.wait_s:
        goes_on, supervisor.adopted = None, agent_left(supervisor)
        if supervisor.adopted is None and (goes_on := running_attempt(supervisor)) is not None:
            led_at = time.monotonic()
            supervisor.rejoin(goes_on)
            supervisor.adopted = agent_left(supervisor)
        if goes_on is not None or supervisor.adopted is not None:
            slots.enqueue()
            if supervisor.adopted is not None:
                supervisor.ready.adopt(slots)
            else:
                supervisor.ready.take(slots)
            if supervisor.ready.gpus is not None:
                try:
                    return _take_part(supervisor, wakeup)
                except SlotsLost as lost:
                    say(str(lost))
                    supervisor.step_back()
                    led_at = time.monotonic()
        elif is_awaited(supervisor):
            supervisor.returning, supervisor.ready.told = False, True
            return wait_and_run(supervisor, wakeup, gpus, again=supervisor.has_begun_here())
        elif supervisor.rpc.all_gone(rules.lease_s):
            break  # the run is over
        elif time.monotonic() > may_vote_from(led_at, rules.lease_s) and is_missed(supervisor):
            slots.enqueue()
            supervisor.ready.take(slots)  # which its agent of before, and the coordinator there, hold to their end
            if supervisor.ready.gpus is not None:
                has_begun = has_begun_anywhere(supervisor)
                number = elect_again(supervisor, wakeup, has_begun=has_begun, within_s=rules.lease_s + rules.wait_s)
                if number is not None:
                    supervisor.move(number)
                    if has_begun:
                        return carry_on(supervisor, wakeup)
                supervisor.ready.let_go(slots)
                if number is not None:
                    return wait_and_run(supervisor, wakeup, gpus)
        wakeup.wait(_AGAIN_S)
    return Exit.OK


def running_attempt(supervisor: SupervisorState) -> OpenAttempt | None:
    """Return the newest attempt that has this host as a member, as the attempt's leader reports it, or None if no
    leader reports one.
    """
    said = supervisor.rpc.ask(Rejoin(supervisor.node))
    sound = [
        one
        for number, one in said.items()
        if isinstance(one, OpenAttempt) and supervisor.ballot.is_attempt_of(number, one, supervisor.attempt.number)
    ]
    return max(sound, key=lambda one: one.attempt, default=None)


def is_awaited(supervisor: SupervisorState) -> bool:
    """Return whether the attempt that this host knows has not begun, because the leader still waits for hosts or for
    their slots.

    If this host does not lead, the leader has to confirm it: it may have been lost as it told the hosts to begin. If
    this host leads, all hosts that answer have to be waiting in that attempt, and at least one has to answer, unless
    this host is a quorum alone.
    """
    attempt, there = supervisor.attempt, _there(supervisor)
    if supervisor.leads:
        if supervisor.has_begun_here():
            return False
        waits = [one.attempt == attempt.number and not one.began for one in there.values()]
        voter = supervisor.ballot.voter
        return voter.leads and all(waits) and (bool(waits) or voter.carries(()))
    leader = statuses(there).get(leader_of(supervisor))
    return leader is not None and leader.leads and leader.attempt == attempt.number and not leader.began


def is_missed(supervisor: SupervisorState) -> bool:
    """Return whether the other hosts need this one to continue the run.

    That is so if no host that answers has a leader, and those that have a vote are enough together with this one: a
    quorum, and the run's smallest number of nodes. Hosts that have just come back count, too, and a host whose leader
    is one of those without a leader has none.
    """
    if not supervisor.plan.disks_apart or not supervisor.ballot.voter.has_vote or not _enter_newest(supervisor):
        return False
    there = _there(supervisor)
    led_by = {number: one.led_by for number, one in there.items() if not (isinstance(one, Returning) or one.leaderless)}
    leaderless = {supervisor.rpc.peer(number).host for number in there.keys() - led_by.keys()}
    has_votes = [number for number, one in there.items() if one.has_vote]
    return leaderless.issuperset(led_by.values()) and enough(supervisor, has_votes, leads=False)


def has_begun_anywhere(supervisor: SupervisorState) -> bool:
    """Return whether the run has begun an attempt on this host or on another one that answers; if it has not, it may
    have to wait for its turn.
    """
    mine = (one for one in attempts(supervisor.run) if one.number >= supervisor.ballot.begun)
    begun = any(one.started.exists() or any(one.path.glob("node-*/started")) for one in mine)
    return begun or any(one.began for one in _there(supervisor).values())


def _there(supervisor: SupervisorState) -> dict[int, SupervisorStatus | Returning]:
    """Ask the other hosts for their state; return the answers by number, also those of hosts that have come back."""
    replies = supervisor.rpc.ask(Ask())
    return {number: one for number, one in replies.items() if isinstance(one, SupervisorStatus | Returning)}


def agent_left(supervisor: SupervisorState) -> AdoptedAgent | None:
    """Return the agent that the earlier supervisor of this host left running in the newest attempt that this host
    knows, so that this supervisor can watch it from now on.

    Return None if there is none, if the run has ended, or if the agent coordinates an attempt of which this host is not
    the leader any more.
    """
    if not _enter_newest(supervisor):
        return None
    if supervisor.plan.disks_apart and supervisor.attempt.number < supervisor.ballot.voter.newest.attempt:
        return None  # it was to lead a newer one
    if supervisor.leads:
        apart = supervisor.plan.disks_apart
        leads = supervisor.ballot.voter.leads if apart else fence(supervisor.run) == supervisor.attempt.number
        if not leads:
            return None
    return AdoptedAgent.found(supervisor.run, supervisor.attempt, supervisor.plan, supervisor.here.index)


def _enter_newest(supervisor: SupervisorState) -> bool:
    """Change to the newest attempt that this host knows, if the supervisor is not in it yet, and return whether the run
    still goes on, as far as is known here. An attempt that this host was to lead and too few others accepted has no
    plan, and is left out.
    """
    known = [one.attempt for one in supervisor.ballot.voter.openings]
    if not supervisor.plan.disks_apart and (last := newest(supervisor.run)) is not None:
        known = [last.number]
    number = max((one for one in known if supervisor.run.attempt(one).plan.exists()), default=0)
    if number > supervisor.attempt.number:
        supervisor.move(number)
    return not supervisor.has_ended()


def elect_again(supervisor: SupervisorState, wakeup: Wakeup, *, has_begun: bool, within_s: float) -> int | None:
    """Take part in the election of the next attempt's leader for `within_s` seconds at most; return the number of the
    attempt that this host opens as its leader or accepts from another one.

    Return None, and take part no more, if there is none by then, the leader is back, the run continues without this
    host or has ended, or this process was asked to stop. `has_begun` says that the run has begun an attempt, so that
    this host need not wait for the others to begin the next one.
    """
    supervisor.ready.told, supervisor.ready.prepared, supervisor.ready.began = True, has_begun, has_begun
    take_over, until = TakeOver(supervisor), time.monotonic() + within_s
    take_over.open()
    supervisor.returning = False
    with suppress(Fenced):  # this host may rejoin the attempt that runs without it
        while supervisor.ballot.leaderless and not supervisor.has_ended():
            accepted = supervisor.ballot.accepted
            number = accepted.attempt if accepted is not None else take_over.look()
            if number is not None:
                return number
            if wakeup.stop_asked or time.monotonic() > until:
                break
            wakeup.wait(_AGAIN_S)
    supervisor.step_back()
    return None


def _take_part(supervisor: SupervisorState, wakeup: Wakeup) -> int:
    """Run this attempt and those that follow it, as a host that need not wait for the others to begin; return the exit
    code.
    """
    supervisor.ready.told = supervisor.ready.prepared = supervisor.ready.began = True
    supervisor.returning = False
    return carry_on(supervisor, wakeup, again=True)
