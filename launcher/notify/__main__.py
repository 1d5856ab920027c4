"""`python -m launcher.notify RUN_DIR ATTEMPT LINGER_S`: tells of one attempt of a run; its keeper starts it.

It reads what the run writes, and stands in nobody's way: each recipient has a thread of its own. Its stdin is a pipe
that closes when the keeper has written the last word, or is gone. Then it tells what is left to tell, for LINGER_S
at most; where another attempt follows it leaves that to the next.
"""

import os
import select
import sys
from contextlib import ExitStack
from pathlib import Path

from launcher.clock import boottime
from launcher.notify.record import Notifying
from launcher.notify.sender import Sender
from launcher.rundir.durable import readable
from launcher.rundir.layout import RunDir
from launcher.rundir.locks import locked

_LOOK_S = 1.0
_TURN_S = 15.0  # how long a process that came after its keeper had left waits for the one before


def main() -> int:
    run, number, linger_s = RunDir(Path(sys.argv[1])), int(sys.argv[2]), float(sys.argv[3])
    os.umask(0o077)
    os.nice(5)
    what = readable(run.notify, Notifying)
    if what is None:
        return 0
    keeper = select.poll()
    keeper.register(0, select.POLLIN)
    with ExitStack() as stack:
        if _has_turn(run, keeper, stack):
            _tell(Sender(run, number, what), keeper, linger_s)
    sys.stderr.flush()
    os._exit(0)  # a thread that still waits for an answer is not waited for


def _has_turn(run: RunDir, keeper: "select.poll", stack: ExitStack) -> bool:
    """Once the one before has left: it sees that there is a newer attempt."""
    until: float | None = None
    while stack.enter_context(locked(run.notify_lock, optional=True)) is None:
        if keeper.poll(_LOOK_S * 1000) and until is None:
            until = boottime() + _TURN_S
        if until is not None and boottime() >= until:
            return False
    return True


def _tell(sender: Sender, keeper: "select.poll", linger_s: float) -> None:
    sender.look()
    while not keeper.poll(_LOOK_S * 1000) and not sender.fenced:
        sender.look()
    sender.finish(linger_s)


if __name__ == "__main__":
    sys.exit(main())
