"""Wait on this machine for a run whose cluster cannot hold the run back, and then start it there (a deferred start).
The wait is one attempt of the run, and the start on the cluster opens the next. The waiting supervisor may be killed at
any time, and `launch status` starts another. A lock of the attempt makes sure that only one waits, and that the next
attempt is opened once.
"""

import sys
from functools import partial
from typing import BinaryIO

from launcher.errors import Exit, LaunchError, Unreachable
from launcher.places.kinds import DEFERRED, of_kind
from launcher.places.other_runs import OtherRuns
from launcher.plan.model import Plan
from launcher.run.attempts import newest, read_intent, read_plan
from launcher.run.durable import write_record
from launcher.run.graphs import checkpoint_sources
from launcher.run.identity import this_process
from launcher.run.layout import AttemptDir, RunDir
from launcher.run.locks import locked
from launcher.run.records import Handle
from launcher.submission.reopening import reopen
from launcher.supervisor.attempt_end import cancelled, is_cancelled, write_end
from launcher.supervisor.own_log import log_to
from launcher.supervisor.strategy import Strategy
from launcher.supervisor.waiting import Turn, Waiter
from launcher.supervisor.wakeup import Wakeup

_LOOK_S = 1.0


class DeferredStart(Strategy):
    """The supervisor that waits on this machine for one run, and then opens the run's next attempt on its cluster."""

    def supervise(self, go: BinaryIO) -> int:
        """Wait until the run has been started on its cluster or has ended, or a stop signal arrives; return exit code
        0. Return it at once if another process waits for the run, or if its newest attempt is no wait.

        At first this reads `go` until the submitting process closes it, which shows that the submit is complete. After
        a stop signal, another supervisor can continue to wait.
        """
        with go:
            go.read()
        attempt = newest(self.run) if self.run.plan.exists() else None  # else there was no submit after all
        if attempt is None or read_intent(attempt).cluster_kind != DEFERRED:
            return Exit.OK
        with locked(attempt.job_lock) as alone:
            if alone is not None and newest(self.run) == attempt and not attempt.end.exists():
                log_to(attempt.supervisor_log)
                write_record(attempt.handle, Handle(DEFERRED, supervisor=this_process()))
                self._wait(attempt, read_plan(self.run, attempt.number))
        return Exit.OK

    def _wait(self, attempt: AttemptDir, plan: Plan) -> None:
        """Wait in `attempt`, whose plan is `plan`, until the run may start, then start it; record the run's end if it
        was cancelled while it waited.
        """
        wakeup, waiter = Wakeup(), Waiter(self.run, attempt, plan, OtherRuns().look)
        turn = waiter.wait(wakeup, every_s=_LOOK_S, place=partial(self._start, attempt, plan.cluster))
        if turn is Turn.STOPPED and is_cancelled(attempt):
            write_end(self.run, attempt, cancelled(), plan)

    def _start(self, attempt: AttemptDir, on: str) -> str:
        """Open the attempt after `attempt` on the cluster `on`; return "", which tells the caller that nothing is left
        to wait for.

        Raise LaunchError only if no attempt was opened. If one was opened but not started, print the error: `launch
        status` starts that attempt later. If a user cancels this attempt meanwhile, cancel the new one.
        """
        try:
            fetch_given_checkpoints(self.run)
            reopen(self.run, after=attempt.number, on=on, overrides=())
        except LaunchError as error:
            if newest(self.run) == attempt:
                if error.exit_code == Exit.UNREACHABLE:
                    raise Unreachable(*error.lines) from error
                raise
            sys.stderr.write(f"{error}\n")  # what is left to be done `launch status` sees to
        follower = newest(self.run)
        if follower is not None and follower != attempt and is_cancelled(attempt):
            plan = read_plan(self.run, follower.number)  # a person did not know yet that it had gone on
            of_kind(plan.cluster_kind).cancel(self.run, follower, plan)
        return ""


def fetch_given_checkpoints(run: RunDir) -> None:
    """Fetch the checkpoints that the run's spec takes from runs of other steps of its graph, if these runs wrote them
    on other machines; raise LaunchError if one cannot be fetched.
    """
    for name in checkpoint_sources(run):
        other = RunDir(run.path.parent / name)
        attempt = newest(other)
        if attempt is None:
            continue
        of_kind(read_intent(attempt).cluster_kind).fetch(other, "newest")
