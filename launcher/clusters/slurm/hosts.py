"""Which machines an allocation has, and how they reach each other."""

import socket
from collections.abc import Mapping, Sequence

import msgspec

from launcher.clusters.slurm.queries.nodes import read_hostnames, read_nodes, show_hostnames, show_nodes
from launcher.clusters.slurm.reach import ask
from launcher.errors import LaunchError, Unreachable
from launcher.plan.model import NodePlan, Plan


def hosts_of(nodelist: str) -> list[str]:
    """The names behind `node[0-2,7]`, in Slurm's order. Needs no controller."""
    answer = ask(show_hostnames(nodelist))
    names = read_hostnames(answer.out) if answer.code == 0 else []
    if not names:
        raise LaunchError(f"scontrol show hostnames {nodelist}: expected names of hosts, got {answer.err.strip()!r}")
    return names


def addresses_of(hosts: Sequence[str]) -> dict[str, str]:
    """The address by which the others reach each host: what Slurm itself uses, else what its name resolves to."""
    try:
        known = {name: node.address for name, node in read_nodes(ask(show_nodes(hosts)).out).items()}
    except Unreachable:
        known = {}
    return {host: _resolved(known.get(host) or host) for host in hosts}


def seated(plan: Plan, hosts: Sequence[str], addresses: Mapping[str, str]) -> Plan:
    """The plan with its nodes on these hosts: the run's own first, what is more than they are spares.

    An address is left open where the spec names an interface: only the host itself knows that one's.
    """
    own = min(plan.nodes_max, len(hosts))
    given = plan.spec.slurm.interface is None
    nodes = tuple(
        NodePlan(index, addresses[host] if given else "", spare=index >= own, gpus=None, host=host)
        for index, host in enumerate(hosts)
    )
    return msgspec.structs.replace(plan, nodes=nodes)


def _resolved(name: str) -> str:
    try:
        found = socket.getaddrinfo(name, None, type=socket.SOCK_STREAM)
    except OSError as error:
        hint = "hint: slurm.interface names a network interface whose address is used instead"
        raise LaunchError(f"no address for host {name}: {error}", hint) from error
    return str(min(found, key=lambda entry: entry[0] != socket.AF_INET)[4][0])
