"""A cluster whose jobs wait in a queue: what is common to all of them, whichever scheduler they have."""

import os
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, cast

from launcher.errors import Refused, Unreachable
from launcher.places.batch.batch import BatchSystem, Ticket
from launcher.places.batch.cancelling import Cancelling
from launcher.places.batch.dependencies import dependency_problems
from launcher.places.batch.hand_over import batch_job_of, hand_over
from launcher.places.batch.look import look, of_each
from launcher.places.batch.mend import include_nodes, mend
from launcher.places.kinds import of_kind
from launcher.places.place import CancelReport, Place, Preview
from launcher.plan.facts import Misfit
from launcher.plan.model import AwaitedRun, Plan
from launcher.plan.queueing import not_taken, only_behind
from launcher.run.durable import read_record
from launcher.run.layout import AttemptDir, RunDir
from launcher.run.records import ClusterWord, Handle
from launcher.spec.model import JobSpec

if TYPE_CHECKING:
    from launcher.remote.running import Running


class BatchCluster(Place):
    """What a kind adds: what a node offers, and where it has arrays how many runs may share a job."""

    supports_reach = True
    takes: Sequence[str] = ()  # of what a spec says of waiting, `after` and `max_parallel` among it

    def __init__(self, queue: BatchSystem) -> None:
        self.queue = queue
        self.kind = queue.kind
        self._heard: tuple[list[tuple[RunDir, AttemptDir]], list[ClusterWord | None]] = ([], [])

    def start(self, plan: Plan, attempt: int) -> None:
        run = RunDir(Path(plan.run_dir))
        hand_over(self.queue, batch_job_of(run, run.attempt(attempt)))

    def preview(self, plan: Plan) -> Preview:
        """The script, and what the scheduler says of it without taking it."""
        script = self.queue.script(plan, Ticket("0" * 16), Path(plan.run_dir), [])
        try:
            return Preview(script, self.queue.try_out(script))
        except Unreachable as error:
            return Preview(script, str(error.lines[0]))

    def queue_problems(self, spec: JobSpec, awaited: Sequence[AwaitedRun]) -> list[Misfit]:
        """Priorities count among the jobs of everybody."""
        taken = not_taken(spec.queue, self.takes, self.kind)
        return [*taken, *only_behind(spec.queue, self.queue.called), *dependency_problems(self.queue, awaited)]

    def mend(self, attempts: Sequence[tuple[RunDir, AttemptDir]]) -> None:
        """Hand over what a killed submitter left lying, end what was handed over twice."""
        self._heard = list(attempts), of_each(attempts, lambda whole: mend(self.queue, whole))

    def look(self, attempts: Sequence[tuple[RunDir, AttemptDir]]) -> list[ClusterWord | None]:
        """What the scheduler says of each, by one question: that of a mend just before it, or one of its own."""
        (asked, words), self._heard = self._heard, ([], [])
        return words if asked == list(attempts) else of_each(attempts, lambda whole: look(self.queue, whole))

    def include_nodes(self, run: RunDir, hosts: Collection[str]) -> None:
        include_nodes(self.queue, run, hosts)

    def reach(self, run: RunDir, attempt: AttemptDir, node: int) -> "Running":
        """Raises Refused on any other machine, where a scheduler starts nothing beside a job but from inside of it."""
        from launcher.node.inside.visit import host_here, machine_of  # late: only who looks inside needs it

        name, called = machine_of(run, node), self.queue.called
        if name.partition(".")[0] != os.uname().nodename.partition(".")[0]:
            why = f"node {node} of {run.id} is {name}, and {called} starts nothing beside a job's ranks from here"
            raise Refused(why, f"hint: the same command on {name} itself works, where its users may log in")
        return host_here(run, attempt, node, os.environ)

    def release(self, run: RunDir, attempt: AttemptDir) -> None:
        job = job_of(run, attempt)
        if refusal := self.queue.release(job):
            raise Refused(f"{self.queue.called} does not release job {job}: {refusal}")

    def cancel(self, run: RunDir, attempt: AttemptDir, plan: Plan | None) -> CancelReport:
        return Cancelling(self.queue, run, attempt, plan).carry_out()


def job_of(run: RunDir, attempt: AttemptDir) -> str:
    """The id of an attempt's job. Raises Refused where it has none yet."""
    handle = read_record(attempt.handle, Handle)
    if handle is None or handle.job_id is None:
        raise Refused(f"{run.id} has no job yet", f"hint: launch status {run.id} hands it over")
    return handle.job_id


def queue_of(kind: str) -> BatchSystem:
    """The scheduler of this kind of cluster: a process of a job is told the kind."""
    return cast("BatchCluster", of_kind(kind)).queue
