"""The kinds of clusters, and the class of each one. Plug-ins add kinds by entry points of the group `launch.clusters`;
built-in kinds are found without a search for plug-ins.

The entry point of a plug-in has the name of its kind: see launcher/docs/own-place.md.
"""

import shutil
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from typing import TYPE_CHECKING, cast

from launcher.errors import BadInput
from launcher.states import LOCAL

if TYPE_CHECKING:
    from launcher.places.place import Place

GROUP = "launch.clusters"


@dataclass(frozen=True, slots=True)
class ClusterKind:
    """A kind of cluster, as far as it is known before its module is imported.

    `path` is MODULE:CLASS. `asked` means that the cluster has to be asked about runs, because their folders do not show
    everything. `program` is the command whose presence makes the cluster usable without an entry in the clusters file.
    `fresh_s` is the most by which its answers may be out of date for commands that ask again and again. `names` are
    options that an entry must have.
    """

    path: str  # MODULE:CLASS
    asked: bool = True  # its clusters have to be asked about runs, whose folders do not show everything
    program: str = ""  # the command whose presence makes a cluster of the kind's name usable; "": always usable
    fresh_s: float | None = None  # greatest age of answers for commands that ask repeatedly; None: their own
    names: tuple[str, ...] = ()  # options that an entry of the clusters file must have


DEFERRED = "carried"  # an attempt that waits here for runs of other clusters; no spec can name this kind
LOGIN_KIND = "login"  # where a run goes whose cluster has a login node
OURS = {
    LOCAL: ClusterKind("launcher.places.local.cluster:LocalCluster", asked=False),
    "slurm": ClusterKind("launcher.places.slurm.cluster:SlurmCluster", program="sbatch"),
    "gridengine": ClusterKind("launcher.places.gridengine.gridengine:GridEngineCluster", program="qconf"),
    "pbs": ClusterKind("launcher.places.pbs.pbs:PbsCluster", program="pbsnodes"),
    "lsf": ClusterKind("launcher.places.lsf.lsf:LsfCluster", program="bsub"),
    "k8s": ClusterKind("launcher.places.kubernetes.kubernetes:KubernetesCluster"),  # kubectl may be for anything
    "ssh": ClusterKind("launcher.places.ssh.cluster:SshCluster", fresh_s=0.5, names=("hosts",)),
    LOGIN_KIND: ClusterKind("launcher.places.login.cluster:LoginCluster", fresh_s=0.5),
}
_OF_ATTEMPTS = {DEFERRED: ClusterKind("launcher.places.deferred.cluster:DeferredCluster", fresh_s=0.5)}


def kind_named(name: str) -> ClusterKind | None:
    """Return the kind of this name, built in or of a plug-in, or None if there is none."""
    return OURS.get(name) or _OF_ATTEMPTS.get(name) or plugins().get(name)


@cache
def plugins() -> dict[str, ClusterKind]:
    """Return the kinds that installed plug-ins add, by name."""
    from importlib.metadata import entry_points  # late: 20 ms that no run on a kind of ours pays for

    found = entry_points(group=GROUP)
    return {point.name: ClusterKind(point.value) for point in found if point.name not in OURS}


def of_kind(name: str) -> "Place":
    """Return a new place of this kind; raise BadInput if no such kind is installed."""
    kind = kind_named(name)
    if kind is None:
        raise BadInput(f"there is no kind of cluster {name[:100]!r}", "hint: is its package installed here?")
    return made(kind)


def made(kind: ClusterKind) -> "Place":
    """Return a new place of this kind; raise BadInput if the kind's class is not a Place of this version of the
    launcher.
    """
    module, _, name = kind.path.partition(":")
    place = getattr(import_module(module), name)()
    if not hasattr(place, "not_supported"):
        hint = "hint: derive it from launcher.places.place.Place: see launcher/docs/own-place.md"
        raise BadInput(f"{kind.path}: expected a Place, got a class of another launch version", hint)
    return cast("Place", place)


def is_here(name: str) -> bool:
    """Return whether a cluster can be used here under its kind's own name, without an entry in the clusters file: the
    kind's command is installed, if it needs one.
    """
    kind = kind_named(name)
    return (
        kind is not None and name not in _OF_ATTEMPTS and (not kind.program or shutil.which(kind.program) is not None)
    )
