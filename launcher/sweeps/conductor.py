"""The conductor of a sweep: one small process that has runs started, looks at them, and asks Optuna what comes next.

    python -m launcher.sweeps.conductor SWEEP_DIR UP_FD GO_FD

It says on UP_FD that it conducts, or that another one does. What it knows is in the sweep's folder and in the runs:
killed at any instant, the next one goes on where it was.
"""

import os
import sys
import time
import traceback
from pathlib import Path
from typing import TYPE_CHECKING

from launcher.rundir.durable import write_record
from launcher.rundir.identity import this_process
from launcher.rundir.locks import locked
from launcher.rundir.patience import waiting_for_disks
from launcher.supervisor.own_log import log_to
from launcher.supervisor.standby import detach, report
from launcher.sweeps.folder import SweepDir, SweepRecord, SweepState, record_of
from launcher.sweeps.trial_runs import RunsOfTrials

if TYPE_CHECKING:
    from launcher.sweeps.conducting import Round

BUSY = b"busy\n"
_LEAST_S, _MOST_S = 0.1, 1.0  # between two looks
_BEGUN_S = 0.5  # after a trial was started it has the machine to itself: then the next one is made ready


def main() -> int:
    """Detach, take the lock, report, conduct."""
    sweep, up_fd, go_fd = SweepDir(Path(sys.argv[1])), int(sys.argv[2]), int(sys.argv[3])
    os.close(go_fd)
    detach()
    with locked(sweep.lock) as lock:
        if lock is None:
            report(up_fd, BUSY)
            return 0
        write_record(sweep.conductor, this_process())
        record = record_of(sweep)
        os.environ.update({**record.variables, "LAUNCH_RUNS": str(sweep.runs)})  # wherever it is resumed from
        report(up_fd, b"up\n")
        log_to(sweep.log)
        with waiting_for_disks():
            return _kept(sweep, record)


def _kept(sweep: SweepDir, record: SweepRecord) -> int:
    """A fault of ours is the sweep's last word, not a silence."""
    try:
        runs = RunsOfTrials(sweep, record)
        runs.warm_up()
        from launcher.sweeps.conducting import Round  # late: it imports Optuna, while what runs need is imported too
        from launcher.sweeps.trial_book import TrialBook  # late: likewise

        conduct(Round(sweep, record, TrialBook(sweep, record), runs))
    except Exception as error:  # noqa: BLE001 - the last resort of a process that nobody watches
        traceback.print_exc()
        said = SweepState("lost", f"its conductor failed: {error}; see {sweep.log}", (), time.time())
        write_record(sweep.state, said)
        return 1
    return 0


def conduct(rounds: "Round") -> None:
    """Until the sweep is over; the longer nothing happens, the more seldom it looks."""
    quiet_since = time.monotonic()
    while True:
        done, over = rounds.go()
        if over:
            return
        now = time.monotonic()
        if done:
            quiet_since = now
        else:
            if now - quiet_since > _BEGUN_S:
                rounds.make_ready()
            rounds.runs.rest(min(_MOST_S, max(_LEAST_S, (now - quiet_since) / 10)))


if __name__ == "__main__":
    sys.exit(main())
