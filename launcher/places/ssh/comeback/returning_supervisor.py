"""Supervise a run on a host that was lost: restarted there, it takes part in the attempt that continues.

It never leads what it led before and opens no attempt by itself, so if no host continues the run it exits. It has its
newest vote in voter.json, and listens at the address that the others know.
"""

import time
from typing import BinaryIO

from launcher.errors import Exit, LaunchError
from launcher.places.ssh.host import presence
from launcher.places.ssh.host.host_supervisor import carry_on, slots_for, to_its_end
from launcher.places.ssh.host.supervisor_messages import OpenAttempt, Rejoin
from launcher.places.ssh.host.supervisor_rpc import WIRE, SupervisorRpc
from launcher.places.ssh.host.supervisor_state import SupervisorState
from launcher.places.ssh.messages import Opened, Peer
from launcher.remote.rpc.wire import encoded
from launcher.run.durable import read_record
from launcher.supervisor.strategy import Strategy
from launcher.supervisor.wakeup import Wakeup
from launcher.wire.frames import wire_key

_AGAIN_S = 1.0


class ReturningSupervisor(Strategy):
    """The supervisor on a host that returns to a run.

    Its argument ATTEMPT is the attempt with which the run's supervisors were started.
    """

    def boot(self) -> bytes:
        """Return the line with the address at which this supervisor listens, the same as before."""
        number = int(self.words[0])
        attempt = self.run.attempt(number)
        mine, peers = presence.taken(attempt), read_record(attempt.supervisors, tuple[Peer, ...])
        if mine is None or peers is None:
            raise LaunchError(f"{attempt.path}: does not say as whom this host takes part")
        self._supervisor, self._wakeup, self._gpus = SupervisorState(self.run, number, mine.node), Wakeup(), mine.gpus
        self._supervisor.returning = True
        key = wire_key(self._supervisor.secret, WIRE, self._supervisor.plan.run_id, number)
        me = peers[mine.node]
        self._supervisor.rpc = SupervisorRpc(me.address, key, self._supervisor.answering(self._wakeup), me.port)
        self._supervisor.rpc.join(peers, mine.node)
        return encoded(Opened(self._supervisor.rpc.port))

    def supervise(self, go: BinaryIO) -> int:
        """Take part in the run for as long as another host leads; return the exit code."""
        go.close()
        return to_its_end(self._supervisor, lambda: come_back(self._supervisor, self._wakeup, self._gpus))


def come_back(supervisor: SupervisorState, wakeup: Wakeup, gpus: tuple[str, ...]) -> int:
    """Take part once another host leads and this host has the resources it needs; until then hold no slots.

    Return the exit code.
    """
    rules, slots, led_at = supervisor.plan.spec.recovery, slots_for(supervisor.plan, gpus), time.monotonic()
    while not wakeup.stop_asked and time.monotonic() < led_at + rules.lease_s + rules.wait_s:
        if (goes_on := running_attempt(supervisor)) is not None:
            led_at = time.monotonic()
            supervisor.rejoin(goes_on)
            slots.enqueue()
            supervisor.ready.take(slots)
            if supervisor.ready.gpus is not None:
                return _take_part(supervisor, wakeup)
        elif supervisor.rpc.all_gone(rules.lease_s):
            break  # the run is over
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


def _take_part(supervisor: SupervisorState, wakeup: Wakeup) -> int:
    """Run the attempts from now on as a member that has begun, and return the exit code."""
    supervisor.ready.told = supervisor.ready.prepared = supervisor.ready.began = True
    supervisor.returning = False
    return carry_on(supervisor, wakeup, again=True)
