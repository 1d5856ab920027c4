"""A plan once it is known which machines carry the run out, and as one of them reads it."""

from collections.abc import Sequence

import msgspec

from launcher.plan.model import NodePlan, Plan
from launcher.plan.quorum import quorum


def with_hosts(plan: Plan, hosts: Sequence[tuple[str, str]]) -> Plan:
    """The plan with its nodes on these hosts, each a name and an address, the leader first.

    What is more than the run needs are spares. An address may be left open ("") for its host to find out.
    """
    nodes = tuple(
        NodePlan(index, address, spare=index >= plan.nodes_max, gpus=None, host=name)
        for index, (name, address) in enumerate(hosts)
    )
    return msgspec.structs.replace(plan, nodes=nodes, quorum=quorum(len(nodes)) if plan.disks_apart else 0)


def kept_at(plan: Plan, run_dir: str, python: str = "") -> Plan:
    """The plan as a machine reads it that keeps the run's folder there, and has that interpreter for its ranks."""
    entry = msgspec.structs.replace(plan.entry, python=python or plan.entry.python)
    return msgspec.structs.replace(plan, run_dir=run_dir, entry=entry)
