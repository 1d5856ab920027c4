"""Supervise a run on a host that was lost: started again there, it takes part in the attempt that goes on.

It never leads what it led before and opens no attempt by itself, so if no host goes on it exits. It has its newest vote
in voter.json, and listens at the address that the others know.
"""

import time
from typing import BinaryIO

from launcher.errors import Exit, LaunchError
from launcher.places.ssh.host import presence
from launcher.places.ssh.host.keeper import carry_on, slots_for, to_its_end
from launcher.places.ssh.host.keeper_messages import OpenAttempt, Rejoin
from launcher.places.ssh.host.keeper_rpc import WIRE, KeeperRpc
from launcher.places.ssh.host.keeper_state import KeeperState
from launcher.places.ssh.messages import Opened, Peer
from launcher.remote.rpc.wire import encoded
from launcher.run.durable import read_record
from launcher.supervisor.strategy import Strategy
from launcher.supervisor.wakeup import Wakeup
from launcher.wire.frames import wire_key

_AGAIN_S = 1.0


class ReturningSupervisor(Strategy):
    """The supervisor that returns to a run; its argument is ATTEMPT, with which the run's supervisors were started."""

    def boot(self) -> bytes:
        """Return where this supervisor listens: the address that it had before."""
        number = int(self.words[0])
        attempt = self.run.attempt(number)
        mine, peers = presence.taken(attempt), read_record(attempt.keepers, tuple[Peer, ...])
        if mine is None or peers is None:
            raise LaunchError(f"{attempt.path}: does not say as whom this host takes part")
        self._keeper, self._wakeup, self._gpus = KeeperState(self.run, number, mine.node), Wakeup(), mine.gpus
        self._keeper.returning = True
        key = wire_key(self._keeper.secret, WIRE, self._keeper.plan.run_id, number)
        me = peers[mine.node]
        self._keeper.rpc = KeeperRpc(me.address, key, self._keeper.answering(self._wakeup), me.port)
        self._keeper.rpc.join(peers, mine.node)
        return encoded(Opened(self._keeper.rpc.port))

    def supervise(self, go: BinaryIO) -> int:
        """Take part for as long as another host leads."""
        go.close()
        return to_its_end(self._keeper, lambda: come_back(self._keeper, self._wakeup, self._gpus))


def come_back(keeper: KeeperState, wakeup: Wakeup, gpus: tuple[str, ...]) -> int:
    """Take part once another host leads and this one has what it needs; until then it holds no slots."""
    rules, slots, led_at = keeper.plan.spec.recovery, slots_for(keeper.plan, gpus), time.monotonic()
    while not wakeup.stop_asked and time.monotonic() < led_at + rules.lease_s + rules.wait_s:
        if (goes_on := what_goes_on(keeper)) is not None:
            led_at = time.monotonic()
            keeper.rejoin(goes_on)
            slots.enqueue()
            keeper.ready.take(slots)
            if keeper.ready.gpus is not None:
                return _take_part(keeper, wakeup)
        elif keeper.rpc.all_gone(rules.lease_s):
            break  # the run is over
        wakeup.wait(_AGAIN_S)
    return Exit.OK


def what_goes_on(keeper: KeeperState) -> OpenAttempt | None:
    """Return the newest attempt in which this host has a place, as its leader reports it, or None."""
    said = keeper.rpc.ask(Rejoin(keeper.node))
    sound = [
        one
        for number, one in said.items()
        if isinstance(one, OpenAttempt) and keeper.ballot.goes_on_with(number, one, keeper.attempt.number)
    ]
    return max(sound, key=lambda one: one.attempt, default=None)


def _take_part(keeper: KeeperState, wakeup: Wakeup) -> int:
    keeper.ready.told = keeper.ready.prepared = keeper.ready.began = True
    keeper.returning = False
    return carry_on(keeper, wakeup, again=True)
