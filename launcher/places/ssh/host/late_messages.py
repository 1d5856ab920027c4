"""Inform other supervisors that the run was cancelled or has ended, once hosts that were cut off can be reached again.

`cancel`: a user has cancelled the run; `end`: it has ended by itself, as the records here show. This process holds no
slots and ends nothing here.
"""

import os
import subprocess
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import BinaryIO, Literal

from launcher.errors import Exit
from launcher.node.environment import cleaned
from launcher.places.ssh.host import presence
from launcher.places.ssh.host.record_copies import QUIET_S, RecordReplicator
from launcher.places.ssh.host.supervisor_messages import (
    Cancelled,
    Declined,
    SupervisorQuestion,
    SupervisorReply,
    granted,
)
from launcher.places.ssh.host.supervisor_rpc import WIRE, SupervisorRpc
from launcher.places.ssh.messages import Peer
from launcher.run.attempts import newest, read_intent, read_plan
from launcher.run.layout import RunDir
from launcher.run.processes import TAG, forbid_core_dumps
from launcher.spec.model import Recovery
from launcher.supervisor.standby import supervisor_command
from launcher.supervisor.strategy import Strategy
from launcher.wire.frames import wire_key

GIVE_UP_WAITS = 5  # a leaderless supervisor waits this many times `recovery.wait` for more hosts
_SURE_S = 60.0


@dataclass(frozen=True, slots=True)
class Patience:
    """The intervals and time limits, in seconds, for informing other supervisors."""

    again_s: float = 0.5  # pause between two tries to inform the remaining hosts
    ask_s: float = 2.0  # for an answer
    nobody_s: float = 8.0  # a host that refuses connections for a lease and this time has no supervisor
    quiet_s: float = QUIET_S  # for which a host that did not answer is skipped


def send(run: RunDir, word: Literal["cancel", "end"], hosts: Sequence[str]) -> None:
    """Start a process that informs the hosts, by name, that the run was cancelled or has ended, as `word` says. It
    outlives this one.

    Do nothing if `hosts` is empty or no record says how to reach them.
    """
    if not hosts or presence.begun(run) is None:
        return
    subprocess.Popen(
        supervisor_command(f"{__name__}:LateMessages", run.path, word, *hosts),
        env={**cleaned(os.environ), TAG: str(run.path)},
        cwd="/",
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )


class LateMessages(Strategy):
    """The task of a process that informs other hosts of the run's end. It tries again until all are informed or so much
    time has passed that those which were cut off have given the run up by themselves; see `gives_up_s`.

    Its first argument is `cancel` or `end`, the others are the names of the hosts to inform.
    """

    stands_by = False  # it begins at once and awaits no message to do so

    def supervise(self, _go: BinaryIO) -> int:
        """Send the message to all hosts, and return the exit code 0 once each has confirmed it, has refused connections
        for long, or must have given the run up by itself. Nothing is read from `_go`, the pipe from the starter.
        """
        forbid_core_dumps()
        deliver(self.run, self.words[0], self.words[1:])
        return Exit.OK


def deliver(run: RunDir, word: str, hosts: Sequence[str], patience: Patience | None = None) -> None:
    """Send the message `word` (`cancel`, or `end` with the records of the run's end) again and again to the supervisors
    on the hosts in `hosts`, until each has confirmed it or refuses connections for long. Give up after `gives_up_s`: by
    then a supervisor that is cut off from the others has given the run up by itself.

    `patience` has the time limits; None means the usual ones. Do nothing if no attempt has begun on this host.
    """
    patience = patience or Patience()
    begun, last = presence.begun(run), newest(run)
    if begun is None or last is None:
        return
    attempt, peers = begun
    plan = read_plan(run, attempt.number)
    rpc = _among(peers, wire_key(read_intent(attempt).token, WIRE, plan.run_id, attempt.number))
    whom, rules = {number for number in rpc.others if rpc.peer(number).host in hosts}, plan.spec.recovery
    if word == "cancel":
        said = Cancelled(rpc.me)
        _until_informed(rpc, whom, rules, patience, lambda left: left - {*granted(rpc.ask(said, left, patience.ask_s))})
    else:
        records = RecordReplicator(run, last, rpc, quiet_s=patience.quiet_s)
        _until_informed(rpc, whom, rules, patience, lambda left: left & {*records.lacking_end()})
        records.close()
    rpc.close()


def gives_up_s(recovery: Recovery) -> float:
    """Return the most seconds for which a supervisor that has lost the others waits for them, before it gives the run
    up by itself: the lease, six times `recovery.wait`, and a minute to be sure.
    """
    return recovery.lease_s + (GIVE_UP_WAITS + 1) * recovery.wait_s + _SURE_S


def _until_informed(
    rpc: SupervisorRpc, left: set[int], rules: Recovery, patience: Patience, tell: Callable[[set[int]], set[int]]
) -> None:
    """Call `tell` with the numbers of the hosts `left` to be informed, and again with those that it returns, until none
    is left or each must have given up.

    `rules` are the run's recovery settings, from which the time of giving up follows. `patience` has the pause between
    calls, and how long a host must refuse connections to be left out, as one that has no supervisor.
    """
    deadline = time.monotonic() + gives_up_s(rules)
    while left and time.monotonic() < deadline:
        left = tell(left) - rpc.gone(rules.lease_s + patience.nobody_s)
        if left:
            time.sleep(patience.again_s)


def _among(peers: Sequence[Peer], key: bytes) -> SupervisorRpc:
    """Return the connection object over which this process asks the run's other supervisors.

    `peers` are all supervisors; this host's is the first at whose address this machine can listen. Raise OSError if it
    can listen at none. `key`, derived from the run's secret, authenticates messages.
    """
    problem: OSError | None = None
    for number, peer in enumerate(peers):
        try:
            rpc = SupervisorRpc(peer.address, key, _declined)
        except OSError as error:
            problem = error
        else:
            rpc.join(peers, number)
            return rpc
    raise problem or OSError("there are no supervisors")


def _declined(_question: SupervisorQuestion, _asker: str) -> SupervisorReply:
    """Return the answer to any question of another supervisor: Declined, as the run has ended."""
    return Declined("the run has ended")
