"""A Grid Engine cluster, from any machine that has its programs."""

from collections.abc import Sequence

from launcher.clusters.batch.cluster import BatchCluster
from launcher.clusters.batch.queue import Phase, QueuedJob
from launcher.clusters.gridengine.queries import ExecHost, all_hosts_of, hosts_of
from launcher.clusters.gridengine.queue import GridEngineQueue, rule_of
from launcher.clusters.gridengine.script import check_rule
from launcher.clusters.place import HostNow
from launcher.errors import BadInput
from launcher.plan.facts import Machine
from launcher.spec.model import JobSpec


class GridEngineCluster(BatchCluster):
    """Grid Engine, as far as submitters see it. It waits for the end of a job, whatever that was, and has arrays: this
    kind uses neither."""

    doctor = "launcher.clusters.gridengine.doctor"
    takes = ("priority", "after", "hold", "at")

    def __init__(self) -> None:
        super().__init__(GridEngineQueue())

    def machine(self, spec: JobSpec) -> Machine:
        """The least that a host of the queue has of cores, the most that one has of GPUs, free at the moment."""
        own, wanted = spec.gridengine, spec.resources.gpus_per_node
        check_rule(own.pe, rule_of(own.pe), spec.resources.nodes.max)
        hosts = hosts_of(own.queue, own.gpu_resource)
        if not hosts:
            where = f"queue {own.queue}" if own.queue else "any queue"
            raise BadInput(f"gridengine.queue: no host of {where} answers", "hint: `qhost -q` shows what there is")
        free = (int(host.free.get(own.gpu_resource, 0.0)) for host in hosts)
        gpus = max(*free, wanted if isinstance(wanted, int) else 0)
        cpus = min(host.cpus for host in hosts)
        return Machine(cpus, tuple(map(str, range(gpus))), apart=True, limit_per_job=True, interface=own.interface)

    def hosts_now(self, spec: JobSpec) -> list[HostNow]:
        """The hosts of its queues; of jobs those of the user, as others' are none of ours to tell."""
        own, jobs = spec.gridengine, self.queue.jobs()
        return [_now(host, own.gpu_resource, jobs) for host in all_hosts_of(own.queue, own.gpu_resource)]


def _now(host: ExecHost, resource: str, jobs: Sequence[QueuedJob]) -> HostNow:
    """Grid Engine tells how many GPUs are free, not how many there are."""
    there = tuple(job.id for job in jobs if job.phase is Phase.RUNNING and host.name in job.hosts.split(","))
    state = "unknown" if not host.up else "taken" if host.used else "free"
    free = int(host.free[resource]) if host.up and resource in host.free else None
    text = ", ".join(sorted(host.queues)) if host.up else "does not answer"
    return HostNow(host.name, state, free_gpus=free, jobs=there, text=text)
