"""Ask hosts that a run has lost to take part again: `python -m launcher.programs ask-back RUN_DIR HOST...`

It is a process of its own, so that a status command does not wait for hosts that are down.
"""

import os
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from launcher.places.ssh.host_client import HostClient
from launcher.places.ssh.host_clients import ask_all
from launcher.places.ssh.messages import ComeBack
from launcher.places.ssh.run_hosts import places_of
from launcher.run.attempts import newest
from launcher.run.avoided import avoided
from launcher.run.durable import readable
from launcher.run.layout import RunDir
from launcher.run.records import ClusterAnswer, RunState
from launcher.states import State

_GOES_ON = (State.RUNNING, State.REGROUPING)
_BETWEEN = (State.QUEUED, State.STARTING)  # attempts, where there was one before
_NOT_HERE = ("lost", "waiting")  # the latter of a host that an attempt went on without
_EVERY_S = 15.0
_SILENT_S = 30.0  # the coordinator writes the state much more often


def ask_lost(run: RunDir) -> None:
    """Start a process that asks the lost hosts of a run to take part again, unless one was started in the last 15
    seconds.

    It is started for a run that continues without these hosts or waits for them. Hosts that have lost only their
    supervisor are asked, too, and if the run's state was not written for 30 seconds, the host of node 0, which leads.
    """
    last = readable(run.state, RunState)
    if last is None or not (last.state in _GOES_ON or (last.state in _BETWEEN and last.restarts)):
        return
    silent = time.time() > last.updated_at + _SILENT_S
    lost = [node.host for node in last.nodes if node.host and (node.state in _NOT_HERE or (silent and node.node == 0))]
    lost += [host for host in _unsupervised(run) if host not in lost and any(node.host == host for node in last.nodes)]
    if lost and _is_time(run):
        subprocess.Popen(
            [sys.executable, "-P", "-m", "launcher.programs", "ask-back", str(run.path), *lost],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )


def _unsupervised(run: RunDir) -> list[str]:
    """Return the hosts that may have no supervisor: those that the run has excluded from its attempts for some time,
    mostly because they did not answer its leader, and the leader's host if the last answer from the hosts says that its
    supervisor is gone.
    """
    attempt = newest(run)
    seen = readable(attempt.seen, ClusterAnswer) if attempt is not None else None
    leader = [seen.unsupervised] if seen is not None and seen.unsupervised else []
    return [*leader, *(exclusion.host for exclusion in avoided(run))]


def main(argv: Sequence[str]) -> int:
    """Ask the hosts named as arguments, all at once, to take part again. Answers and failures are ignored, and 0 is
    returned.
    """
    run, hosts = RunDir(Path(argv[0])), argv[1:]
    places = [place for place in places_of(run) if place.host.name in hosts]

    def come_back(client: HostClient) -> str:
        """Ask one host to take part again; return why it does not, or "" if it does."""
        limit_s = 2 * client.limits.soon_s  # a supervisor has to start there
        return client.ask(ComeBack(run.id, client.place.workdir), str, limit_s=limit_s)

    ask_all(places, come_back)
    return 0


def _is_time(run: RunDir) -> bool:
    """Return True and record the time, unless a process has asked in the last 15 seconds; return False also if the time
    cannot be recorded.
    """
    try:
        age_s = time.time() - run.asked_back.stat().st_mtime
    except FileNotFoundError:
        age_s = _EVERY_S
    if 0 <= age_s < _EVERY_S:
        return False
    try:
        os.close(os.open(run.asked_back, os.O_CREAT | os.O_WRONLY | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600))
        os.utime(run.asked_back)
    except OSError:
        return False  # a full or failing disk must not prevent a status command
    return True
