"""The guard of a batch process: start the batch process of a job, restart it if it is killed, and pass the scheduler's
signals on to it.

    python -m launcher.programs guard KIND RUN_DIR [ends-with-0]

Signals stay blocked in this process and in the batch process until they are handled, because they would end a Python
that is still starting. While the job is being ended nothing is restarted: the scheduler decides what follows.
"""

import os
import signal
import sys
from collections.abc import Sequence

HEARD = (signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2)
_STRATEGY = "launcher.places.batch.job.batch_process:BatchSupervisor"
ENDS_WITH_0 = "ends-with-0"  # the job does, however its run has ended: the scheduler would hold it for another start
_LIVES = 10  # a batch process that dies before it has an attempt has no other budget


def main(argv: Sequence[str]) -> int:
    """Run the batch process for `argv`, which is KIND RUN_DIR and perhaps `ends-with-0`, until it or the job ends.
    Return its exit code, or 128 + the signal that killed it. With `ends-with-0` every exit code becomes 0, because a
    scheduler with the expedited requeue would hold a failed job for another start.
    """
    with open("/proc/self/comm", "w") as name:  # as `launcher.run.processes.name_this`, without its imports
        name.write("launch-super")
    signal.pthread_sigmask(signal.SIG_BLOCK, {*HEARD, signal.SIGCHLD})
    kind, folder, *ends = argv
    killed_by: list[str] = []
    for _ in range(_LIVES):
        words = [sys.executable, "-P", "-m", "launcher.supervisor", _STRATEGY, folder, kind, *killed_by]
        code, told = _watch(os.posix_spawn(sys.executable, words, os.environ, setsigmask=HEARD))
        if code >= 0:
            return 0 if ENDS_WITH_0 in ends else code
        if told:
            break
        killed_by = [str(-code)]
    return 128 - code


def _watch(pid: int) -> tuple[int, bool]:
    """Wait for the process; return (its exit code, or -n if signal n ended it; whether the scheduler has asked the job
    to end).
    """
    told = False
    while True:
        number = signal.sigwait({*HEARD, signal.SIGCHLD})
        if number != signal.SIGCHLD:
            told = told or number == signal.SIGTERM
            os.kill(pid, number)  # our own child, not reaped yet: the pid cannot be another's
            continue
        ended, status = os.waitpid(pid, os.WNOHANG)
        if ended:
            return os.waitstatus_to_exitcode(status), told
