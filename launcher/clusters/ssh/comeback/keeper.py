"""The keeper of a run on a host that was lost: started again there, it takes part in the attempt that goes on.

    python -m launcher.clusters.ssh.comeback.keeper RUN_DIR ATTEMPT UP_FD GO_FD

It never leads what it led before, and opens no attempt by itself: where nobody goes on there is nothing to come back
to. It knows whom it counted and what it had promised (votes.json), and listens where the others know it.
ATTEMPT is the one that keepers were started with.
"""

import os
import sys
import time
from pathlib import Path

from launcher.agent.wire import wire_key
from launcher.clusters.ssh.host import presence
from launcher.clusters.ssh.host.keeper import carry_on, slots_for, to_its_end
from launcher.clusters.ssh.host.keeper_messages import Propose, Rejoin
from launcher.clusters.ssh.host.keeper_rpc import WIRE, KeeperRpc
from launcher.clusters.ssh.host.keeper_state import KeeperState
from launcher.clusters.ssh.messages import Opened, Peer
from launcher.errors import Exit, LaunchError
from launcher.hostlink.rpc.wire import encoded
from launcher.rundir.durable import read_record
from launcher.rundir.layout import RunDir
from launcher.supervisor.standby import detach, report
from launcher.supervisor.wakeup import Wakeup

_AGAIN_S = 1.0


def main() -> int:
    """Detach, report, take part for as long as somebody leads."""
    run, number, up_fd, go_fd = RunDir(Path(sys.argv[1])), int(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4])
    os.close(go_fd)
    detach()
    seat = presence.taken(run.attempt(number))
    peers = read_record(run.attempt(number).keepers, tuple[Peer, ...])
    if seat is None or peers is None:
        raise LaunchError(f"{run.attempt(number).path}: does not say as whom this host takes part")
    keeper, wakeup = KeeperState(run, number, seat.node), Wakeup()
    keeper.returning = True
    key = wire_key(keeper.secret, WIRE, keeper.plan.run_id, number)
    me = peers[seat.node]
    keeper.rpc = KeeperRpc(me.address, key, keeper.answering(wakeup), me.port)
    keeper.rpc.join(peers, seat.node)
    report(up_fd, encoded(Opened(keeper.rpc.port)))
    return to_its_end(keeper, lambda: come_back(keeper, wakeup, seat.gpus))


def come_back(keeper: KeeperState, wakeup: Wakeup, gpus: tuple[str, ...]) -> int:
    """Once somebody leads, and this host has what it needs; until then it holds nothing."""
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


def what_goes_on(keeper: KeeperState) -> Propose | None:
    """The newest attempt in which this host has a place, as its leader says."""
    said = keeper.rpc.ask(Rejoin(keeper.node))
    sound = [
        one for number, one in said.items() if isinstance(one, Propose) and keeper.election.goes_on_with(number, one)
    ]
    return max(sound, key=lambda one: one.attempt, default=None)


def _take_part(keeper: KeeperState, wakeup: Wakeup) -> int:
    keeper.ready.told = keeper.ready.pledged = keeper.ready.began = True
    keeper.returning = False
    return carry_on(keeper, wakeup, again=True)


if __name__ == "__main__":
    sys.exit(main())
