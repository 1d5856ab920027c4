"""Find the hosts of an allocation and the addresses by which they reach each other."""

from collections.abc import Sequence

from launcher.errors import LaunchError, Unreachable
from launcher.places.batch.batch import resolved
from launcher.places.slurm.queries.nodes import read_hostnames, read_nodes, show_hostnames, show_nodes
from launcher.places.slurm.reach import ask


def hosts_of(nodelist: str) -> list[str]:
    """Return the names in a list such as `node[0-2,7]`, in Slurm's order; needs no controller. Raise LaunchError."""
    answer = ask(show_hostnames(nodelist))
    names = read_hostnames(answer.out) if answer.code == 0 else []
    if not names:
        raise LaunchError(f"scontrol show hostnames {nodelist}: expected names of hosts, got {answer.err.strip()!r}")
    return names


def addresses_of(hosts: Sequence[str]) -> dict[str, str]:
    """Return the address by which others reach each host: Slurm's own, or else what its name resolves to."""
    try:
        known = {name: node.address for name, node in read_nodes(ask(show_nodes(hosts)).out).items()}
    except Unreachable:
        known = {}
    hint = "hint: slurm.interface names a network interface whose address is used instead"
    return {host: resolved(known.get(host) or host, hint) for host in hosts}
