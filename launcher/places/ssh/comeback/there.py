"""Restart the supervisor of every run that this host took part in, after a reboot, without a user's help.

    python -P -m launcher.programs come-back WORKDIR [RUN_ID]

This is for the host's crontab; `launch doctor POOL` prints the line. Each run's supervisor is started by the launcher
version that it had.
"""

import os
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from launcher.errors import Exit, LaunchError
from launcher.ids import is_run_id
from launcher.places.ssh.host import presence, receive
from launcher.run.layout import RunDir

IN_ALL_VERSIONS = "launcher.clusters.ssh.comeback.there"  # the name by which each version starts this program
_AGAIN_S, _GIVE_UP_S = 5.0, 300.0  # the network may come up later than we


def main(argv: Sequence[str]) -> int:
    """Restart the supervisors of all runs in a folder, or of one run; return the exit code, which is not 0 if one could
    not be started.

    `argv` is WORKDIR, whose subfolder `runs` has the runs, and the id of the one run, if given. For all runs, try again
    for five minutes, because the network may come up late.
    """
    os.umask(0o077)
    runs = Path(os.path.expanduser(argv[0]), "runs")
    if len(argv) > 1:
        return _come_back(RunDir(runs / argv[1]))
    left = [RunDir(path) for path in sorted(runs.glob("*")) if is_run_id(path.name)]
    deadline = time.monotonic() + _GIVE_UP_S
    while True:
        left = [run for run in left if not _restart_supervisor(run)]
        if not left or time.monotonic() > deadline:
            return Exit.UNREACHABLE if left else Exit.OK
        time.sleep(_AGAIN_S)


def _restart_supervisor(run: RunDir) -> bool:
    """Start the run's supervisor with the launcher version that it had. Return False if that failed, and True if it was
    started or if the run needs none here.
    """
    found = presence.begun(run)
    mine = presence.taken(found[0]) if found is not None else None
    if mine is None:
        return True
    words = [mine.python, "-P", "-m", IN_ALL_VERSIONS, str(run.path.parent.parent), run.id]
    return subprocess.run(words, stdin=subprocess.DEVNULL, check=False).returncode == Exit.OK


def _come_back(run: RunDir) -> int:
    """Start the run's supervisor with the launcher version of this process, unless it runs already, or the run has
    ended or had no part on this host. Return the exit code: 0, or UNREACHABLE after an error, which is printed.
    """
    try:
        receive.come_back(run)
    except (LaunchError, OSError) as error:
        sys.stderr.write(f"{run.id}: {error}\n")
        return Exit.UNREACHABLE
    return Exit.OK
