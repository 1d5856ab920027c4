"""Where runs go. A cluster's module is imported only when a run goes, or has gone, there."""

from collections.abc import Collection, Sequence
from importlib import import_module
from pathlib import Path
from typing import cast

from launcher.clusters.protocol import CancelReport, Cluster
from launcher.errors import Refused
from launcher.rundir.attempts import attempts
from launcher.rundir.layout import AttemptDir, RunDir
from launcher.rundir.records import ClusterWord

_KINDS = {
    "local": ("launcher.clusters.local.cluster", "LocalCluster"),
    "slurm": ("launcher.clusters.slurm.cluster", "SlurmCluster"),
    "ssh": ("launcher.clusters.ssh.cluster", "SshCluster"),
}

FRESH_S = {"ssh": 0.5}  # what costs little may be asked more often by those who watch


def of_kind(kind: str) -> Cluster:
    """The cluster of this kind, whatever its name: it is asked of runs that went there."""
    module, name = _KINDS[kind]
    return cast("Cluster", getattr(import_module(module), name)())


def bring_logs(run: RunDir) -> None:
    """Have what ranks have written so far in the run's folder here; most clusters write it there themselves."""
    if _was_on_hosts(run):
        from launcher.clusters.ssh.results import fetch  # late: only of runs that went there

        fetch.bring_logs(run)


def bring_results(run: RunDir, checkpoint: str) -> list[str]:
    """Have logs, metrics and a checkpoint in the run's folder here; a line for each thing that came."""
    if not _was_on_hosts(run):
        return []
    from launcher.clusters.ssh.results import fetch  # late: as above

    return fetch.fetch(run, checkpoint)


def bring_newest(kind: str, run: RunDir) -> None:
    """Have the newest checkpoint here, and the logs where they can be had: the run is to go on somewhere else."""
    if kind == "ssh":
        from launcher.clusters.ssh.results import checkpoints, fetch  # late: as above

        checkpoints.bring_newest(run)
        fetch.bring_logs(run)


def _was_on_hosts(run: RunDir) -> bool:
    """Whether an attempt of it, not only the newest, was handed to hosts of a pool."""
    return any(attempt.hosts.exists() for attempt in attempts(run))


def forgive(kind: str, run: RunDir, hosts: Collection[str]) -> None:
    """Have whoever carries the run out somewhere else hear of it."""
    if kind == "ssh":
        from launcher.clusters.ssh.submit import cancel  # late: as above

        cancel.pardon(run, hosts)


def cancel_without(kind: str, run: RunDir, attempt: AttemptDir, gone: Collection[str]) -> CancelReport:
    """End a run without the word of these hosts, if they are silent. Raises Refused where others watch over them."""
    if kind != "ssh":
        raise Refused("only the hosts of a pool can be given up", "hint: the cluster itself knows of its nodes")
    from launcher.clusters.ssh.submit import cancel  # late: as above

    return cancel.cancel(run, attempt, gone=gone)


def adopt(ref: str) -> Path | None:
    """The folder here of a run that was submitted elsewhere, to a place that this machine reaches too."""
    from launcher.clusters.named import clusters_file  # late: as above

    if clusters_file() is None:
        return None
    from launcher.clusters.ssh.submit import discovery  # late: as above

    return discovery.adopt(ref)


def look(kind: str, asked: Sequence[tuple[RunDir, AttemptDir]]) -> list[ClusterWord | None]:
    """What the clusters of this kind say of these attempts; one question for all."""
    return of_kind(kind).look(asked) if kind in _KINDS else [None for _ in asked]
