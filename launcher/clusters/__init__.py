"""Where runs go. A cluster's module is imported only when a run goes, or has gone, there."""

import shutil
from collections.abc import Sequence
from importlib import import_module
from typing import cast

from launcher.clusters.protocol import Cluster
from launcher.errors import BadInput
from launcher.rundir.layout import AttemptDir, RunDir
from launcher.rundir.records import ClusterWord

_KINDS = {
    "local": ("launcher.clusters.local", "LocalCluster"),
    "slurm": ("launcher.clusters.slurm.cluster", "SlurmCluster"),
}


def cluster(name: str) -> Cluster:
    """The cluster of this name. Raises BadInput naming those that exist."""
    if name == "slurm" and shutil.which("sbatch") is None:
        raise BadInput("--on slurm: there is no `sbatch` on PATH", "hint: submit on a login node of the cluster")
    if name not in _KINDS:
        raise BadInput(f"--on {name}: no such cluster", f"hint: there is {', '.join(sorted(_KINDS))}")
    return of_kind(name)


def of_kind(kind: str) -> Cluster:
    """The cluster of this kind, whatever its name: it is asked of runs that went there."""
    module, name = _KINDS[kind]
    return cast("Cluster", getattr(import_module(module), name)())


def look(kind: str, attempts: Sequence[tuple[RunDir, AttemptDir]]) -> list[ClusterWord | None]:
    """What the clusters of this kind say of these attempts; one question for all."""
    return of_kind(kind).look(attempts) if kind in _KINDS else [None for _ in attempts]
