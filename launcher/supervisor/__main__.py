"""Run the supervisor: the one process that supervises a run, from before its start to its last record.

    python -m launcher.supervisor MODULE:STRATEGY RUN_DIR [WORD...] [UP_FD GO_FD]

It boots while the submitter still freezes code, reports on UP_FD that it is up, and reads from GO_FD when to begin.
What differs between places is the strategy: see `strategy.py` and `standby.py`.
"""

import io
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, cast

from launcher.errors import LaunchError
from launcher.programs import import_at_start
from launcher.run.durable import Damaged
from launcher.run.patience import waiting_for_disks
from launcher.run.processes import name_this
from launcher.supervisor.attempt_end import record_damage
from launcher.supervisor.standby import detach, report

if TYPE_CHECKING:
    from launcher.supervisor.strategy import Strategy


def main(argv: Sequence[str]) -> int:
    """Boot the supervisor and report to its starter that it is up; wait for the message to begin, supervise the run,
    and return the exit code.

    The strategy is the class, named by the first of `argv`, that has what differs between places. If it is not started
    early (its `stands_by` is False), it begins at once and reports nothing.
    """
    name_this("launch-super")
    path, folder, *words = argv
    module, _, name = path.partition(":")
    try:
        of_place = cast("type[Strategy]", getattr(import_at_start(module), name))
        if not of_place.stands_by:
            os.umask(0o077)
            return supervise(of_place(Path(folder), words), io.BytesIO())
        *words, up_fd, go_fd = words
        strategy = of_place(Path(folder), words)
        detach(already=strategy.detached)
        report(int(up_fd), strategy.boot())
        with open(int(go_fd), "rb") as go:
            return supervise(strategy, go)
    except LaunchError as error:
        print(error, file=sys.stderr)
        return error.exit_code


def supervise(strategy: "Strategy", go: BinaryIO) -> int:
    """Run the strategy and return its exit code. If it raises Damaged, because of a damaged record, write an end of the
    run that names the record, and raise the error again.

    `go` is the pipe from which the strategy reads the starter's message to begin.
    """
    try:
        with waiting_for_disks():
            return strategy.supervise(go)
    except Damaged as error:
        record_damage(strategy.run, error)
        raise


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
