"""The place of an attempt that waits on this machine (a deferred start), because the run's own cluster cannot see or
count the runs that it waits for. A process here waits, and then opens the next attempt on that cluster.

The attempt ends when the waiting process opens the next one on the run's cluster, as `launch resume` does
(`submission/deferred_start.py`). That attempt has a fixed number, so that there is only one, whichever process is
killed at whichever moment. A command that finds no waiting process for a run starts one; of two, the one with the lock
goes on.
"""

from collections.abc import Sequence
from pathlib import Path

from launcher.errors import LaunchError, Refused
from launcher.places.kinds import DEFERRED
from launcher.places.local.cluster import end_here
from launcher.places.place import CancelReport, Place
from launcher.plan.facts import Machine
from launcher.plan.model import Plan
from launcher.run.attempts import newest, read_intent
from launcher.run.durable import create_record
from launcher.run.identity import alive, this_process
from launcher.run.layout import AttemptDir, RunDir
from launcher.run.locks import locked
from launcher.run.records import ClusterAnswer
from launcher.spec.model import JobSpec
from launcher.supervisor.attempt_end import has_ended
from launcher.supervisor.standby import StandbySupervisor

_DEFERRED_START = "launcher.submission.deferred_start:DeferredStart"


class DeferredCluster(Place):
    """The place where an attempt waits on this machine, in a process of its own, for other runs.

    `there` is the cluster to which the run will go; methods that describe its nodes refuse if it is None.
    """

    kind = DEFERRED
    most_in_order = 10_000  # runs of one submit that can start in order, for `max_parallel`

    def __init__(self, there: Place | None = None) -> None:
        self._there = there

    def machine(self, spec: JobSpec) -> Machine:
        """Return what a node offers on the cluster to which the run will go; raise Refused if this place was made
        without that cluster.
        """
        if self._there is None:
            raise Refused("a run waits here on its way to a cluster", "hint: name that with --on")
        return self._there.machine(spec)

    def preview(self, _plan: Plan) -> None:
        """Return None, because nothing is submitted to a cluster yet."""

    def prepare(self, plan: Plan) -> StandbySupervisor:
        """Start the process that will wait for other runs on behalf of the plan's run, and return it. It begins to wait
        when its caller gives it the attempt's number (`start`).
        """
        return StandbySupervisor(_DEFERRED_START, Path(plan.run_dir))

    def start(self, plan: Plan, attempt: int) -> None:
        """Start the process that waits, for attempt number `attempt`."""
        self.prepare(plan).start(attempt)

    def look(self, attempts: Sequence[tuple[RunDir, AttemptDir]]) -> list[ClusterAnswer | None]:
        """Return None for each attempt, because the run's folder and processes on this machine show everything."""
        return [None for _ in attempts]  # the caller looks at this machine's processes itself

    def mend(self, attempts: Sequence[tuple[RunDir, AttemptDir]]) -> None:
        """Start the waiting process for each attempt whose waiting process was killed. If it cannot be started, leave
        that to the next call.
        """
        for run, attempt in attempts:
            if newest(run) == attempt and not has_ended(run, attempt) and _is_abandoned(attempt):
                try:
                    StandbySupervisor(_DEFERRED_START, run.path).start(attempt.number)
                except (LaunchError, OSError):
                    continue  # the next look tries again; until then status shows that no process waits

    def release(self, _run: RunDir, attempt: AttemptDir) -> None:
        """Record that the run, which was submitted to be held, may start."""
        if not attempt.released.exists():
            create_record(attempt.released, this_process())

    def cancel(self, run: RunDir, attempt: AttemptDir, plan: Plan | None) -> CancelReport:
        """End the process that waits, and return the report. `plan` is None if it cannot be read."""
        return end_here(run, attempt, plan)


def _is_abandoned(attempt: AttemptDir) -> bool:
    """Return whether neither the attempt's submitter nor its waiting process is alive."""
    if not attempt.handle.exists() and alive(read_intent(attempt).created_by):
        return False
    with locked(attempt.job_lock) as free:
        return free is not None
