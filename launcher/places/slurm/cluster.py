"""A Slurm cluster as a place where runs go, from any machine that has sbatch."""

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING

from launcher.errors import BadInput
from launcher.places.batch.batch import Phase, QueuedJob
from launcher.places.batch.cluster import BatchCluster, job_of
from launcher.places.place import HostNow
from launcher.places.slurm.container import container_problems
from launcher.places.slurm.queries.nodes import (
    Node,
    gpu_count,
    is_in_hostlist,
    partition_nodes,
    read_nodes,
    read_partition_nodes,
    show_nodes,
)
from launcher.places.slurm.queue import SlurmSystem
from launcher.places.slurm.reach import ask, clean_environment
from launcher.plan.facts import Machine
from launcher.run.attempts import last_attempt, read_plan
from launcher.run.layout import AttemptDir, RunDir
from launcher.spec.model import JobSpec

if TYPE_CHECKING:
    from launcher.remote.running import Running


class SlurmCluster(BatchCluster):
    """Slurm as a cluster to which runs are submitted. `takes` are the supported options of the spec's `queue`."""

    doctor = "launcher.places.slurm.doctor"  # module with its checks
    takes_roles = True  # a run may consist of several programs
    takes = ("priority", "after", "hold", "at", "max_parallel")

    def __init__(self) -> None:
        self._slurm = SlurmSystem()
        super().__init__(self._slurm)
        self._nodes: dict[str | None, list[Node]] = {}
        self._containers: set[str] = set()  # that were found well

    def most_together(self) -> int:
        """Return how many runs can be submitted as one job array: Slurm's MaxArraySize, or 1 if that is unknown."""
        return self._slurm.config.max_array_size or 1

    def machine(self, spec: JobSpec) -> Machine:
        """Return what the nodes of the spec's partition, or of the default one, offer: the most GPUs that any node has,
        the fewest cores among nodes with that many GPUs, and the number of nodes, or None if Slurm powers nodes up on
        demand. Raise BadInput if the partition has no nodes or the spec's container cannot be used.
        """
        self._check_container(spec.slurm.container)
        partition = spec.slurm.partition
        if not self._nodes:
            self._slurm.get_ready()
        if partition not in self._nodes:
            self._nodes[partition] = read_partition_nodes(ask(partition_nodes(partition)).out)
        nodes = [node for node in self._nodes[partition] if partition or node.default]
        if not nodes:
            where = f"partition {partition}" if partition else "the default partition"
            raise BadInput(f"slurm.partition: Slurm knows of no node in {where}", "hint: `sinfo` shows what there is")
        gpus = max(node.gpus for node in nodes)
        able = [node for node in nodes if node.gpus == gpus]
        asked = gpu_count(spec.slurm.gres) if spec.slurm.gres is not None else None
        devices = tuple(map(str, range(gpus)))
        return Machine(
            min(node.cpus for node in able),
            devices,
            apart=True,
            asked_gpus=asked,
            interface=spec.slurm.interface,
            nodes=None if self._slurm.config.grows else len({node.name for node in nodes}),
            limit_per_job=True,
        )

    def hosts_now(self, spec: JobSpec) -> list[HostNow]:
        """Return the nodes of the spec's partition, or of all partitions, with this user's jobs on them; other users'
        jobs are not shown.
        """
        partition, jobs = spec.slurm.partition, self._slurm.jobs()
        nodes = read_nodes(ask(show_nodes(details=True)).out).values()
        return [_now(node, jobs) for node in nodes if partition is None or partition in node.partitions]

    def reach(self, run: RunDir, attempt: AttemptDir, node: int) -> "Running":
        """Start, by srun in the run's job, the process that inspects ranks on the node with the number `node`, and
        return the connection to it; raise Refused if no machine is recorded for the node. An srun that fails shows when
        the connection is used.
        """
        from launcher.node.inside.visit import host_here, machine_of  # late: only who looks inside needs it
        from launcher.places.slurm.steps import step_command  # late: see above

        plan = read_plan(run, attempt.number)
        whole = plan if run.whole == run else read_plan(run.whole, last_attempt(run.whole).number)
        words = step_command(whole, plan, job_of(run, attempt), machine_of(run, node))
        return host_here(run, attempt, node, clean_environment(os.environ), words)

    def _check_container(self, text: str | None) -> None:
        """Raise BadInput if the spec's container, `text`, cannot be parsed, or needs a program or an image that this
        machine lacks, so that no rank could start in it. None stands for no container.
        """
        if text is not None and text not in self._containers:
            if problems := container_problems(text):
                raise BadInput(*(f"slurm.container: {problem}" for problem in problems))
            self._containers.add(text)


def _now(node: Node, jobs: Sequence[QueuedJob]) -> HostNow:
    """Return a node as `launch nodes list` shows it, with the user's jobs on it."""
    there = tuple(job.id for job in jobs if job.phase is Phase.RUNNING and is_in_hostlist(node.name, job.hosts))
    state = "unknown" if not node.takes_jobs else "taken" if node.taken_cpus or node.taken_gpus else "free"
    reason = f": {node.reason}" if node.reason else ""
    text = f"{'+'.join(node.state).lower()}{reason}"
    free = max(0, node.gpus - node.taken_gpus) if node.takes_jobs else 0
    return HostNow(node.name, state, node.gpus, free, jobs=there, text=text)
