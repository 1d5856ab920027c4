"""Where runs go. A cluster's module is imported only when a run goes there."""

from importlib import import_module
from typing import cast

from launcher.clusters.protocol import Cluster
from launcher.errors import BadInput

_KINDS = {"local": ("launcher.clusters.local", "LocalCluster")}


def cluster(name: str) -> Cluster:
    """The cluster of this name. Raises BadInput naming those that exist."""
    if name not in _KINDS:
        raise BadInput(f"--on {name}: no such cluster", f"hint: there is {', '.join(sorted(_KINDS))}")
    module, kind = _KINDS[name]
    return cast("Cluster", getattr(import_module(module), kind)())
