"""The process that carries the wait of a run which follows runs of other clusters, and then starts it on its own.

    python -m launcher.submission.carrier RUN_DIR UP_FD GO_FD

It may be killed at any time: nothing is lost but the process, and `launch status` starts another. The lock of the
attempt is for one; the number of the next attempt is given once.
"""

import sys
from pathlib import Path

from launcher.clusters.kinds import CARRIED, of_kind
from launcher.clusters.other_runs import OtherRuns
from launcher.errors import Exit, LaunchError, Unreachable
from launcher.plan.model import Plan
from launcher.rundir.attempts import newest, read_intent, read_plan
from launcher.rundir.durable import write_record
from launcher.rundir.graphs import given_to
from launcher.rundir.identity import this_process
from launcher.rundir.layout import AttemptDir, RunDir
from launcher.rundir.locks import locked
from launcher.rundir.patience import waiting_for_disks
from launcher.rundir.records import Handle
from launcher.submission.reopening import reopen
from launcher.supervisor.attempt_end import cancelled, is_cancelled, write_end
from launcher.supervisor.own_log import log_to
from launcher.supervisor.standby import detach, report
from launcher.supervisor.waiting import Turn, Waiter
from launcher.supervisor.wakeup import Wakeup

_LOOK_S = 1.0


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

    def carry(self) -> None:
        """Return once the run goes on elsewhere, or has ended here. If only told to leave, the wait stays open."""
        waiter = Waiter(self._run, self._attempt, self._plan, OtherRuns().look)
        turn = waiter.wait(self._wakeup, every_s=_LOOK_S, place=self._start)
        if turn is Turn.STOPPED and is_cancelled(self._attempt):
            write_end(self._run, self._attempt, cancelled(), self._plan)

    def _start(self) -> str:
        """Open the next attempt, on the run's own cluster, and return "". Raises LaunchError only if there is none."""
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
        return ""


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
