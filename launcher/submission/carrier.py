"""The process that carries the wait of a run which follows runs of other clusters, and then starts it on its own.

    python -m launcher.submission.carrier RUN_DIR UP_FD GO_FD

It may be killed at any time: nothing is lost but the process, and `launch status` starts another. The lock of the
attempt is for one; the number of the next attempt is given once.
"""

import sys
import time
from pathlib import Path

from launcher.clusters.keeping.attempt_end import cancelled, is_cancelled, write_end
from launcher.clusters.keeping.before_start import BeforeStart
from launcher.clusters.keeping.others import OtherRuns
from launcher.clusters.keeping.own_log import log_to
from launcher.clusters.keeping.queued import say_queued
from launcher.clusters.keeping.standby import detach, report
from launcher.clusters.keeping.wakeup import Wakeup
from launcher.clusters.kinds import CARRIED, of_kind
from launcher.errors import Exit, LaunchError, Unreachable
from launcher.plan.model import Plan
from launcher.rundir.attempts import newest, read_intent, read_plan
from launcher.rundir.durable import write_record
from launcher.rundir.graphs import given_to
from launcher.rundir.identity import this_process
from launcher.rundir.layout import AttemptDir, RunDir
from launcher.rundir.locks import locked
from launcher.rundir.patience import waiting_for_disks
from launcher.rundir.records import AttemptEnd, Handle
from launcher.submission.reopening import reopen
from launcher.words import Cause, State

_LOOK_S = 1.0
_AGAIN_S = 20.0  # after a cluster did not answer


def main() -> int:
    """Detach, report, wait for the word, carry the wait."""
    run, up_fd, go_fd = RunDir(Path(sys.argv[1])), int(sys.argv[2]), int(sys.argv[3])
    detach()
    report(up_fd, b"up\n")
    with open(go_fd, "rb") as file:
        file.read()
    attempt = newest(run) if run.plan.exists() else None  # else there was no submit after all
    if attempt is None or read_intent(attempt).cluster_kind != CARRIED:
        return Exit.OK
    with waiting_for_disks(), locked(attempt.job_lock) as alone:
        if alone is not None and newest(run) == attempt and not attempt.end.exists():
            log_to(attempt.keeper_log)
            write_record(attempt.handle, Handle(CARRIED, keeper=this_process()))
            Carrier(run, attempt, read_plan(run, attempt.number), Wakeup()).carry()
    return Exit.OK


class Carrier:
    """The wait of one attempt."""

    def __init__(self, run: RunDir, attempt: AttemptDir, plan: Plan, wakeup: Wakeup) -> None:
        self._run, self._attempt, self._plan, self._wakeup = run, attempt, plan, wakeup
        self._waits = BeforeStart(run, attempt, plan, OtherRuns().look)

    def carry(self) -> None:
        """Until the run goes on elsewhere, or has ended here. Where it is only told to leave, the wait stays open."""
        again_at = 0.0
        while not self._wakeup.stop_asked:
            hopeless, reasons = self._waits.look()
            if hopeless:
                return self._end(cancelled(hopeless))
            if not reasons and time.monotonic() >= again_at:
                try:
                    return self._start()
                except Unreachable as error:
                    reasons, again_at = [f"waits for its cluster: {error.lines[0]}"], time.monotonic() + _AGAIN_S
                except LaunchError as error:
                    at = time.time()
                    return self._end(
                        AttemptEnd(State.FAILED, Cause.LAUNCHER_FAULT, Exit.LAUNCHER_FAULT, at, str(error))
                    )
            if reasons:
                say_queued(self._run, self._attempt, "; ".join(reasons))
            self._wakeup.sleep(_LOOK_S)
        if is_cancelled(self._attempt):
            self._end(cancelled())
        return None

    def _start(self) -> None:
        """Its next attempt, on its own cluster. Raises LaunchError only where there is none."""
        try:
            bring_what_it_is_given(self._run)
            reopen(self._run, after=self._attempt.number, on=self._plan.cluster, overrides=())
        except LaunchError as error:
            if newest(self._run) == self._attempt:
                if error.exit_code == Exit.UNREACHABLE:
                    raise Unreachable(*error.lines) from error
                raise
            sys.stderr.write(f"{error}\n")  # what is left to be done `launch status` sees to
        follower = newest(self._run)
        if follower is not None and follower != self._attempt and is_cancelled(self._attempt):
            plan = read_plan(self._run, follower.number)  # a person did not know yet that it had gone on
            of_kind(plan.cluster_kind).cancel(self._run, follower, plan)

    def _end(self, end: AttemptEnd) -> None:
        write_end(self._run, self._attempt, end, self._plan)


def bring_what_it_is_given(run: RunDir) -> None:
    """Have checkpoints here that a step is given of others, which have written them elsewhere."""
    for name in given_to(run):
        other = RunDir(run.path.parent / name)
        attempt = newest(other)
        if attempt is None:
            continue
        of_kind(read_intent(attempt).cluster_kind).fetch(other, "newest")


if __name__ == "__main__":
    sys.exit(main())
