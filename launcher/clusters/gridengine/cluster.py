"""A Grid Engine cluster, from any machine that has its programs."""

from launcher.clusters.batch.cluster import BatchCluster
from launcher.clusters.gridengine.queries import ExecHost, ask, read_hosts
from launcher.clusters.gridengine.queue import GridEngineQueue, rule_of
from launcher.clusters.gridengine.script import check_rule
from launcher.errors import BadInput
from launcher.plan.facts import Machine
from launcher.spec.model import JobSpec


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


def hosts_of(queue: str | None, resource: str) -> list[ExecHost]:
    """Those that answer, of one of these queues, or of any."""
    known = read_hosts(ask(["qhost", "-q", "-F", resource, "-xml"]).out)
    named = {one.partition("@")[0] for one in queue.split(",")} if queue else None
    return [host for host in known if host.up and (host.queues if named is None else named & host.queues)]
