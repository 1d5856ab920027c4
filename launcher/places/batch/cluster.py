"""The base class of clusters with a batch queue, whatever their scheduler; and `mend`, which completes what killed
processes left undone, such as an attempt that was recorded but not submitted. An attempt's handle is the record of its
job: the job's id and submit token.

An attempt with an intent and no job was left by a submitter that was killed. A second job with the same token can only
come from a submitting command that was given up and succeeded later; it would have nothing to do.
"""

import contextlib
import os
import time
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, cast

from launcher.errors import BadInput, NotStarted, Refused, Unreachable
from launcher.places.batch.batch import BatchSystem, ExecHost, Phase, QueuedJob, SubmitToken
from launcher.places.batch.cancelling import Cancelling
from launcher.places.batch.dependencies import dependency_problems
from launcher.places.batch.hand_over import ThisCluster, hand_over, submit_tokens_of
from launcher.places.batch.look import Asked, answers_of, last_answers, look, of_each
from launcher.places.kinds import of_kind
from launcher.places.place import CancelReport, HostNow, Place, Preview
from launcher.plan.facts import Machine, Misfit
from launcher.plan.model import AwaitedRun, Plan
from launcher.plan.queueing import not_taken, priority_problems
from launcher.run.attempts import newest, read_plan
from launcher.run.avoided import avoided, forget, has_expired
from launcher.run.durable import read_record, readable, write_record
from launcher.run.layout import AttemptDir, RunDir
from launcher.run.patience import DISK_ERRORS
from launcher.run.records import ClusterAnswer, Handle
from launcher.spec.model import JobSpec
from launcher.supervisor.handover import Handover, is_open

if TYPE_CHECKING:
    from launcher.remote.running import Running

_SEEN_AGAIN_S = 60.0


def mend(queue: BatchSystem, attempts: Asked) -> list[ClusterAnswer | None]:
    """Do what killed processes left undone: submit attempts that were only recorded, and cancel jobs that nobody needs,
    such as a second one of an attempt; let waiting jobs use hosts again that were excluded for a while.

    Return the scheduler's answer about each of the (run, attempt) pairs, as `look` does, None for one that is still
    being submitted; if the scheduler does not answer, return the last recorded answers.
    """
    here = ThisCluster(queue)
    try:
        for run, attempt in attempts:
            with _ignoring_full_disk():
                _submit_unsubmitted(queue, run, attempt, here)
        handles = [read_record(attempt.handle, Handle) for _, attempt in attempts]
        jobs = queue.jobs()  # after the handles: a job that has one is in it
        _cancel_duplicates(queue, attempts, handles, jobs)
        with _ignoring_full_disk():
            _drop_expired_exclusions(queue, attempts, handles, jobs)
    except Unreachable as error:
        return last_answers(attempts, error)
    words = answers_of(queue, attempts, handles, jobs)
    for (_, attempt), word, handle in zip(attempts, words, handles, strict=True):
        if word is not None and handle is not None and not word.silent:
            with _ignoring_full_disk():
                _record_answer(attempt, word)
    return words


@contextlib.contextmanager
def _ignoring_full_disk() -> Iterator[None]:
    """Suppress an OSError of a full, failing or read-only disk (`DISK_ERRORS`) in the `with` block; what it left undone
    is done by a later `mend`.
    """
    try:
        yield
    except OSError as error:
        if error.errno not in DISK_ERRORS:
            raise


def _submit_unsubmitted(queue: BatchSystem, run: RunDir, attempt: AttemptDir, here: ThisCluster) -> None:
    """Submit the attempt if it has no job and the process that should have submitted it has ended; leave it alone if it
    was meant for another cluster than `here`. If that fails for good, record the end of the attempt, with the reason.
    """
    if not is_open(run, attempt):
        return
    handover = Handover.of(run, attempt)
    if handover.is_in_hand() or here.elsewhere(run, attempt):
        return
    try:
        hand_over(queue, handover, again=True)
    except NotStarted as refusal:
        handover.give_up(str(refusal))


def _cancel_duplicates(
    queue: BatchSystem, attempts: Asked, handles: Sequence[Handle | None], jobs: Sequence[QueuedJob]
) -> None:
    """Cancel each waiting job that carries a submit token of one of the runs but is not the job in the run's newest
    handle: a second submission, or an older attempt's job that the scheduler has requeued.

    `attempts` has the newest attempt of each run, `handles` their handles in the same order (None for one that was not
    submitted), and `jobs` all jobs that the scheduler shows. Elements of an array are left alone, because another run
    may own them.
    """
    wanted = {
        submit_token: handle.job_id
        for (run, _), handle in zip(attempts, handles, strict=True)
        if handle is not None
        for submit_token, element in submit_tokens_of(run)
        if submit_token and element is None
    }
    for job in jobs:
        ours = next((wanted[submit_token] for submit_token in job.submit_tokens if submit_token in wanted), None)
        if ours is not None and job.id != ours and job.phase is Phase.QUEUED:
            queue.cancel(job.id)


def _drop_expired_exclusions(
    queue: BatchSystem, attempts: Asked, handles: Sequence[Handle | None], jobs: Sequence[QueuedJob]
) -> None:
    """Let the waiting jobs of runs use nodes again whose exclusion has expired: its time `until` has passed.

    `attempts` has (run, newest attempt) of each run, `handles` the attempts' handles in the same order (None for one
    that was not submitted), and `jobs` all jobs that the scheduler shows.
    """
    now, waiting = time.time(), {job.id for job in jobs if job.phase is Phase.QUEUED}
    for (run, attempt), handle in zip(attempts, handles, strict=True):
        if handle is not None and handle.job_id in waiting and has_expired(run, now):
            left = [exclusion.host for exclusion in avoided(run, now)]
            queue.start_again(read_plan(run, attempt.number), handle.job_id, left)
            forget(run, now)


def include_nodes(queue: BatchSystem, run: RunDir, hosts: Collection[str]) -> None:
    """Let the run's waiting job use nodes again that it excludes: the named hosts, or all if `hosts` is empty. Do
    nothing if the run's newest attempt has no job, or one that does not wait.
    """
    attempt = newest(run)
    handle = readable(attempt.handle, Handle) if attempt is not None else None
    if attempt is None or handle is None or handle.job_id is None:
        return
    left = [exclusion.host for exclusion in avoided(run) if hosts and exclusion.host not in hosts]
    for job in queue.jobs([handle.job_id]):
        if job.phase is Phase.QUEUED and job.may_have(handle.submit_token):
            queue.start_again(read_plan(run, attempt.number), job.id, left)


def _record_answer(attempt: AttemptDir, answer: ClusterAnswer) -> None:
    """Record the scheduler's answer about the attempt's job, to be used when the scheduler does not answer or no longer
    shows how the job ended. An answer with the same state as the recorded one is written only if that one is more than
    a minute old.
    """
    before = readable(attempt.seen, ClusterAnswer)
    if (
        before is None
        or before.phase != answer.phase
        or before.word != answer.word
        or answer.at - before.at > _SEEN_AGAIN_S
    ):
        write_record(attempt.seen, answer)


class BatchCluster(Place):
    """A cluster with a batch system, `queue`. If that cannot list its hosts, a subclass overrides `machine`, which
    returns the resources of a node. `takes` are the supported options of the spec's `queue`.
    """

    supports_reach = True  # `reach` can start a program beside the ranks of a node
    takes: Sequence[str] = ()  # the supported options of `queue`, such as `after` and `max_parallel`

    def __init__(self, queue: BatchSystem) -> None:
        self.queue = queue
        self.kind = queue.kind
        self._heard: tuple[list[tuple[RunDir, AttemptDir]], list[ClusterAnswer | None]] = ([], [])

    def most_together(self) -> int:
        """Return how many runs can be submitted as one job array, or 1 if arrays are not used."""
        return self.queue.most_in_array

    def machine(self, spec: JobSpec) -> Machine:
        """Return what a node of the queue that the spec names offers: the largest number of GPUs that any host has, and
        the smallest number of cores among the hosts with so many.

        If the batch system reports only how many GPUs are free, the number is the largest of these, or what the spec
        requests if that is more. Raise BadInput if no host is up.
        """
        own, called, wanted = getattr(spec, self.kind, None), self.queue.called, spec.resources.gpus_per_node
        hosts = [host for host in self._hosts_for(spec) if host.up]
        if not hosts:
            queue = getattr(own, "queue", None)
            where = f"queue {queue}" if queue else "any queue"
            hint = f"hint: `launch doctor {self.kind}` shows what there is"
            raise BadInput(f"{self.kind}.queue: no host of {where} answers {called}", hint)
        most = max(host.gpus or 0 for host in hosts)
        able = [host for host in hosts if (host.gpus or 0) == most]
        if all(host.gpus is None for host in hosts):
            most = max(*(host.free_gpus or 0 for host in hosts), wanted if isinstance(wanted, int) else 0)
        devices, interface = tuple(map(str, range(most))), getattr(own, "interface", None)
        return Machine(min(one.cpus for one in able), devices, apart=True, limit_per_job=True, interface=interface)

    def hosts_now(self, spec: JobSpec) -> list[HostNow]:
        """Return the hosts of the queue that the spec names, with this user's jobs on them; other users' jobs are not
        shown.
        """
        jobs = self.queue.jobs()
        return [_host_now(host, jobs) for host in self._hosts_for(spec)]

    def _hosts_for(self, spec: JobSpec) -> list[ExecHost]:
        """Return the hosts of the queue that the spec names, or all hosts if it names none."""
        own = getattr(spec, self.kind, None)
        gpu = getattr(own, "gpu_resource", self.queue.gpu_resource)
        return self.queue.exec_hosts(getattr(own, "queue", None), gpu)

    def start(self, plan: Plan, attempt: int) -> None:
        """Submit a job for attempt number `attempt` of the plan's run, unless that has been done. Raise NotStarted if
        the job is refused, and Unreachable if the result is unknown.
        """
        run = RunDir(Path(plan.run_dir))
        hand_over(self.queue, Handover.of(run, run.attempt(attempt)))

    def preview(self, plan: Plan) -> Preview:
        """Return the batch script, and the scheduler's answer about it without a submit, or why it does not answer."""
        script = self.queue.script(plan, SubmitToken("0" * 16), Path(plan.run_dir), [])
        try:
            return Preview(script, self.queue.try_out(script))
        except Unreachable as error:
            return Preview(script, str(error.lines[0]))

    def queue_problems(self, spec: JobSpec, awaited: Sequence[AwaitedRun]) -> list[Misfit]:
        """Return a problem for each condition to wait for that the scheduler does not support, and for a priority above
        0, which in a batch queue would put the job before those of other users.
        """
        taken = not_taken(spec.queue, self.takes, self.kind)
        return [*taken, *priority_problems(spec.queue, self.queue.called), *dependency_problems(self.queue, awaited)]

    def mend(self, attempts: Sequence[tuple[RunDir, AttemptDir]]) -> None:
        """Submit the jobs that a killed submitter did not. If an attempt was submitted twice, cancel the job that is
        not its recorded one while it waits. Let waiting jobs use nodes again whose exclusion has expired.
        """
        self._heard = list(attempts), of_each(attempts, lambda whole: mend(self.queue, whole))

    def look(self, attempts: Sequence[tuple[RunDir, AttemptDir]]) -> list[ClusterAnswer | None]:
        """Return the scheduler's answer about each attempt, or None for one that is still being submitted.

        One query serves all attempts. The first call after a `mend` of the same attempts returns the answers that
        `mend` got.
        """
        (asked, words), self._heard = self._heard, ([], [])
        return words if asked == list(attempts) else of_each(attempts, lambda whole: look(self.queue, whole))

    def include_nodes(self, run: RunDir, hosts: Collection[str]) -> None:
        """Let the run's waiting job use nodes again that it excludes: the named hosts, or all if `hosts` is empty."""
        include_nodes(self.queue, run, hosts)

    def reach(self, run: RunDir, attempt: AttemptDir, node: int) -> "Running":
        """Start the program that serves one request about the node's ranks, and return the connection to it. This works
        only on the node itself: raise Refused if it is another machine, because a scheduler starts nothing in a job
        from outside.
        """
        from launcher.node.inside.visit import host_here, machine_of  # late: only who looks inside needs it

        name, called = machine_of(run, node), self.queue.called
        if name.partition(".")[0] != os.uname().nodename.partition(".")[0]:
            why = f"node {node} of {run.id} is {name}, and {called} starts nothing beside a job's ranks from here"
            raise Refused(why, f"hint: the same command on {name} itself works, where its users may log in")
        return host_here(run, attempt, node, os.environ)

    def release(self, run: RunDir, attempt: AttemptDir) -> None:
        """Release the run's held job; raise Refused if the scheduler does not allow it."""
        job = job_of(run, attempt)
        if refusal := self.queue.release(job):
            raise Refused(f"{self.queue.called} does not release job {job}: {refusal}")

    def cancel(self, run: RunDir, attempt: AttemptDir, plan: Plan | None) -> CancelReport:
        """Cancel the run: ask its own processes to end, then end its job, and return the report once all processes and
        jobs of the run have ended. `plan` is None if it cannot be read.

        Raise Unreachable if the scheduler does not answer or a job does not end within a minute; processes on the nodes
        still end by the request, which is in the run's folder.
        """
        return Cancelling(self.queue, run, attempt, plan).carry_out()


def _host_now(host: ExecHost, jobs: Sequence[QueuedJob]) -> HostNow:
    """Return a host as `launch nodes list` shows it, with the user's jobs on it."""
    there = tuple(job.id for job in jobs if job.phase is Phase.RUNNING and host.name in job.hosts.split(","))
    state = "unknown" if not host.up or host.drains else "taken" if host.used else "free"
    free = host.free_gpus if host.up else None
    return HostNow(host.name, state, host.gpus, free, jobs=there, text=host.text)


def job_of(run: RunDir, attempt: AttemptDir) -> str:
    """Return the id of an attempt's job; raise Refused if it has none yet."""
    handle = read_record(attempt.handle, Handle)
    if handle is None or handle.job_id is None:
        raise Refused(f"{run.id} has no job yet", f"hint: launch status {run.id} hands it over")
    return handle.job_id


def queue_of(kind: str) -> BatchSystem:
    """Return the batch system of this kind, such as `slurm`; raise BadInput if no such kind is installed.

    A process in a job gets the kind as an argument.
    """
    return cast("BatchCluster", of_kind(kind)).queue
