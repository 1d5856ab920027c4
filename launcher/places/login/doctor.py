"""`launch doctor` of a cluster with a login node: what is in the way of runs is found where they run."""

import shlex
from collections.abc import Iterator

from launcher.errors import Refused
from launcher.health.findings import Finding
from launcher.health.wish import DoctorWish
from launcher.places.clusters_file import ClusterEntry, login_of
from launcher.places.login.address import KIND, as_planned


def check_up(wish: DoctorWish, _tell: object) -> Iterator[Finding]:
    """Raise Refused, with the command that checks the cluster on its login node."""
    address = as_planned(wish.cluster, login_of(ClusterEntry(KIND, wish.cluster, wish.defaults)))
    there = shlex.join([address.launch, "doctor", address.on])
    text = f"{wish.cluster} is looked at from its login node, {address.login}"
    raise Refused(text, f"hint: ssh {address.login} {there}")
