"""A Grid Engine cluster, from any machine that has its programs."""

import os
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

from launcher.clusters.batch.cluster import BatchCluster, job_of
from launcher.clusters.batch.queue import Phase, QueuedJob
from launcher.clusters.gridengine.queries import CALLED, ExecHost, all_hosts_of, ask, hosts_of
from launcher.clusters.gridengine.queue import GridEngineQueue, rule_of
from launcher.clusters.gridengine.script import check_rule
from launcher.clusters.protocol import HostNow
from launcher.errors import BadInput, Refused
from launcher.plan.facts import Machine, Misfit
from launcher.plan.model import AwaitedRun
from launcher.plan.queueing import not_taken, only_behind
from launcher.rundir.layout import AttemptDir, RunDir
from launcher.spec.model import JobSpec, QueueOptions

if TYPE_CHECKING:
    from launcher.doctor.findings import Finding
    from launcher.doctor.wish import DoctorWish
    from launcher.hostlink.running import Running


class GridEngineCluster(BatchCluster):
    """Grid Engine, as far as submitters see it."""

    def __init__(self) -> None:
        super().__init__(GridEngineQueue())

    def machine(self, spec: JobSpec) -> Machine:
        """The least that a host of the queue has of cores, the most that one has of GPUs, free at the moment."""
        own = spec.gridengine
        check_rule(own.pe, rule_of(own.pe), spec.resources.nodes.max)
        hosts = hosts_of(own.queue, own.gpu_resource)
        if not hosts:
            where = f"queue {own.queue}" if own.queue else "any queue"
            raise BadInput(f"gridengine.queue: no host of {where} answers", "hint: `qhost -q` shows what there is")
        free = max(int(host.free.get(own.gpu_resource, 0.0)) for host in hosts)
        wanted = spec.resources.gpus_per_node if isinstance(spec.resources.gpus_per_node, int) else 0
        gpus = tuple(map(str, range(max(free, wanted))))
        cpus = min(host.cpus for host in hosts)
        return Machine(cpus, gpus, apart=True, limit_per_job=True, interface=own.interface)

    def hosts_now(self, spec: JobSpec) -> list[HostNow]:
        """The hosts of its queues; of jobs those of the user, as others' are none of ours to tell."""
        own, jobs = spec.gridengine, self.queue.jobs()
        return [_now(host, own.gpu_resource, jobs) for host in all_hosts_of(own.queue, own.gpu_resource)]

    def queue_problems(self, queue: QueueOptions, _awaited: Sequence[AwaitedRun]) -> list[Misfit]:
        """Grid Engine waits for the end of a job, whatever that was; it has arrays, which this kind does not use."""
        return [*not_taken(queue, ("priority", "hold", "at"), self.kind), *only_behind(queue, "Grid Engine")]

    def release(self, run: RunDir, attempt: AttemptDir) -> None:
        job = job_of(run, attempt)
        answer = ask(["qrls", job])
        if answer.code != 0:
            raise Refused(f"{CALLED} does not release job {job}: {(answer.err or answer.out).strip()[:300]}")

    def reach(self, run: RunDir, attempt: AttemptDir, node: int) -> "Running":
        """Raises Refused on any other machine: Grid Engine starts nothing beside a job but from inside of it."""
        from launcher.clusters.inside.visit import host_here, machine_of  # late: only who looks inside needs it

        name = machine_of(run, node)
        if name.partition(".")[0] != os.uname().nodename.partition(".")[0]:
            why = f"node {node} of {run.id} is {name}, and Grid Engine starts nothing beside a job's ranks from here"
            raise Refused(why, f"hint: the same command on {name} itself works, where its users may log in")
        return host_here(run, attempt, node, os.environ)

    def check_up(self, wish: "DoctorWish", tell: Callable[[str], None]) -> "Iterator[Finding]":
        from launcher.clusters.gridengine.doctor import check_up  # late: nobody else pays for it

        return check_up(wish, tell)


def _now(host: ExecHost, resource: str, jobs: Sequence[QueuedJob]) -> HostNow:
    """Grid Engine tells how many GPUs are free, not how many there are."""
    there = tuple(job.id for job in jobs if job.phase is Phase.RUNNING and host.name in job.hosts.split(","))
    state = "unknown" if not host.up else "taken" if host.used else "free"
    free = int(host.free[resource]) if host.up and resource in host.free else None
    text = ", ".join(sorted(host.queues)) if host.up else "does not answer"
    return HostNow(host.name, state, free_gpus=free, jobs=there, text=text)
