"""The conductor of a sweep: one small process that starts runs, follows them, and asks Optuna for the next trial.

Its state is in the sweep's folder and in the runs: after a kill, the next conductor continues from there.
"""

import os
import time
import traceback
from contextlib import ExitStack
from typing import TYPE_CHECKING, BinaryIO

from launcher.apps.sweeps.folder import SweepDir, SweepRecord, SweepState, record_of
from launcher.apps.sweeps.trial_runs import RunsOfTrials
from launcher.errors import Exit
from launcher.run.durable import write_record
from launcher.run.identity import this_process
from launcher.run.locks import locked
from launcher.supervisor.own_log import log_to
from launcher.supervisor.strategy import Strategy

if TYPE_CHECKING:
    from launcher.apps.sweeps.conducting import Round

_LEAST_S, _MOST_S = 0.1, 1.0  # between two looks
_BEGUN_S = 0.5  # after a trial was started it has the machine to itself: then the next one is made ready


class Conductor(Strategy):
    """The process that conducts one sweep, given the sweep's folder; it does nothing while another process conducts it.
    It is started and detached as the supervisors of runs are, by the same base class.
    """

    def boot(self) -> bytes:
        """Take the sweep's lock if it is free, and return the line that tells the starter that this process runs,
        whether or not it has the lock.

        A process that takes the lock reads everything that was written into the sweep's folder before.
        """
        self._alone, self._sweep = ExitStack(), SweepDir(self.run.path)
        self._conducts = self._alone.enter_context(locked(self._sweep.lock)) is not None
        if self._conducts:
            write_record(self._sweep.conductor, this_process())
        return super().boot()

    def supervise(self, go: BinaryIO) -> int:
        """Conduct until the sweep is over, or not at all if another process has its lock; return the exit code: 1 for
        an internal error, else 0.

        `go`, the pipe from the starter, is closed unread: a conductor needs nothing from it.
        """
        go.close()
        with self._alone:
            if not self._conducts:
                return Exit.OK
            record = record_of(self._sweep)
            os.environ.update({**record.variables, "LAUNCH_RUNS": str(self._sweep.runs)})  # as where it was begun
            log_to(self._sweep.log)
            return _conducted(self._sweep, record)


def _conducted(sweep: SweepDir, record: SweepRecord) -> int:
    """Conduct the sweep until it is over, and return the exit code: 1 for an internal error, which is recorded as the
    sweep's state, else 0.
    """
    try:
        runs = RunsOfTrials(sweep, record)
        runs.warm_up()
        from launcher.apps.sweeps.conducting import Round  # late: it imports Optuna, beside what runs import
        from launcher.apps.sweeps.trial_book import TrialBook  # late: likewise

        conduct(Round(sweep, record, TrialBook(sweep, record), runs))
    except Exception as error:  # noqa: BLE001 - the last resort of a process that nobody watches
        traceback.print_exc()
        said = SweepState("lost", f"its conductor failed: {error}; see {sweep.log}", (), time.time())
        write_record(sweep.state, said)
        return 1
    return 0


def conduct(rounds: "Round") -> None:
    """Call `rounds.go` again and again until the sweep is over. Each call is a round: it reads the state of all trials
    and acts on it, such as by starting trials or ending them. The pauses between rounds grow while none acts.
    """
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
