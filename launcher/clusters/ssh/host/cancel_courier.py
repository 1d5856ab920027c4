"""Tells keepers that a person has cancelled their run: hosts that could not be asked, and can be reached again later.

    python -m launcher.clusters.ssh.host.cancel_courier RUN_DIR HOST...

It holds no slots and ends nothing here. Whoever cancels the run again ends it.
"""

import os
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from launcher.agent.environment import cleaned
from launcher.agent.processes import TAG, forbid_core_dumps
from launcher.agent.wire import wire_key
from launcher.clusters.ssh.host import presence
from launcher.clusters.ssh.host.follower import GIVE_UP_WAITS
from launcher.clusters.ssh.host.keeper_messages import Cancelled, Declined, KeeperQuestion, KeeperReply, granted
from launcher.clusters.ssh.host.keeper_rpc import WIRE, KeeperRpc
from launcher.clusters.ssh.messages import Peer
from launcher.rundir.attempts import read_intent, read_plan
from launcher.rundir.layout import RunDir
from launcher.spec.model import Recovery

_AGAIN_S, _ASK_S = 0.5, 2.0
_SURE_S = 60.0


def send(run: RunDir, hosts: Sequence[str]) -> None:
    """Start one, which outlives this process; where nobody knows how to reach the others there is nothing to do."""
    if presence.begun(run) is None:
        return
    subprocess.Popen(
        [sys.executable, "-P", "-m", __name__, str(run.path), *hosts],
        env={**cleaned(os.environ), TAG: str(run.path)},
        cwd="/",
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )


def main() -> int:
    """Until all have heard it, or every keeper that has not must have given the run up by itself."""
    os.umask(0o077)
    forbid_core_dumps()
    run, hosts = RunDir(Path(sys.argv[1])), sys.argv[2:]
    begun = presence.begun(run)
    if begun is None:
        return 0
    attempt, peers = begun
    plan = read_plan(run, attempt.number)
    rpc = _among(peers, wire_key(read_intent(attempt).token, WIRE, plan.run_id, attempt.number))
    left = {number for number in rpc.others if rpc.peer(number).host in hosts}
    deadline = time.monotonic() + gives_up_s(plan.spec.recovery)
    while left and time.monotonic() < deadline:
        left -= {*granted(rpc.ask(Cancelled(rpc.me), left, _ASK_S))}
        if left:
            time.sleep(_AGAIN_S)
    rpc.close()
    return 0


def gives_up_s(recovery: Recovery) -> float:
    """How long a keeper may wait for the others before it gives the run up."""
    return recovery.lease_s + (GIVE_UP_WAITS + 1) * recovery.wait_s + _SURE_S


def _among(peers: Sequence[Peer], key: bytes) -> KeeperRpc:
    """In the place of the keeper of this host, which is the one whose address can be had here."""
    problem: OSError | None = None
    for number, peer in enumerate(peers):
        try:
            rpc = KeeperRpc(peer.address, key, _declined)
        except OSError as error:
            problem = error
        else:
            rpc.join(peers, number)
            return rpc
    raise problem or OSError("there are no keepers")


def _declined(_question: KeeperQuestion, _asker: str) -> KeeperReply:
    return Declined("the run was cancelled")


if __name__ == "__main__":
    sys.exit(main())
