"""Where runs go. A cluster's module is imported only when a run goes, or has gone, there."""

from collections.abc import Sequence
from importlib import import_module
from typing import cast

from launcher.clusters.protocol import Cluster
from launcher.rundir.layout import AttemptDir, RunDir
from launcher.rundir.records import ClusterWord

_KINDS = {
    "local": ("launcher.clusters.local", "LocalCluster"),
    "slurm": ("launcher.clusters.slurm.cluster", "SlurmCluster"),
}


def of_kind(kind: str) -> Cluster:
    """The cluster of this kind, whatever its name: it is asked of runs that went there."""
    module, name = _KINDS[kind]
    return cast("Cluster", getattr(import_module(module), name)())


def look(kind: str, attempts: Sequence[tuple[RunDir, AttemptDir]]) -> list[ClusterWord | None]:
    """What the clusters of this kind say of these attempts; one question for all."""
    return of_kind(kind).look(attempts) if kind in _KINDS else [None for _ in attempts]
