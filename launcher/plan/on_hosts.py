"""Change a plan once its machines are known, and for each of them."""

from collections.abc import Sequence

import msgspec

from launcher.plan.model import NodePlan, Plan


def with_hosts(plan: Plan, hosts: Sequence[tuple[str, str]], away: Sequence[tuple[str, str]] = ()) -> Plan:
    """Return the plan with its nodes on these hosts, each a name and an address, the leader first.

    Hosts beyond what the run needs are spares. An address may be "" for the host to find out. The run does not wait for
    hosts in `away`, and they do not count as its hosts.
    """
    here = len(hosts)
    nodes = tuple(
        NodePlan(index, address, spare=index >= min(plan.nodes_max, here), gpus=None, host=name)
        for index, (name, address) in enumerate((*hosts, *away))
    )
    return msgspec.structs.replace(plan, nodes=nodes, away=tuple(range(here, len(nodes))))


def kept_at(plan: Plan, run_dir: str, python: str = "") -> Plan:
    """Return the plan for a machine with its run directory at `run_dir`, awaited runs beside it, and `python`
    for its ranks.
    """
    entry = msgspec.structs.replace(plan.entry, python=python or plan.entry.python)
    beside = run_dir.rpartition("/")[0]
    awaited = tuple(msgspec.structs.replace(one, run_dir=f"{beside}/{one.run_id}") for one in plan.awaited)
    return msgspec.structs.replace(plan, run_dir=run_dir, entry=entry, awaited=awaited)


def voters_of(plan: Plan) -> frozenset[int]:
    """Return the nodes that vote in the plan's attempt: those it was opened on, if they share no disk; else none."""
    if not (plan.elects and plan.disks_apart):
        return frozenset()
    return frozenset(node.index for node in plan.nodes) - {*plan.away}


def quorum(hosts: int) -> int:
    """Return how many hosts must be together to go on without a shared disk that says which attempt is newest.

    With the leader half of them is enough, because the others never take over with only half.
    """
    return (hosts + 1) // 2


def may_take_over(there: int, hosts: int) -> bool:
    """Return whether `there` of the hosts may take over without the leader, which needs more than half."""
    return 2 * there > hosts


def leader_may_be_replaced(plan: Plan) -> bool:
    """Return whether others may go on without the first node while its agent still lives, perhaps frozen.

    Hosts that are away count too: one that was only cut off while the attempt was opened may vote for another leader.
    """
    hosts = len(plan.nodes)
    return plan.elects and may_take_over(hosts - 1, hosts)
