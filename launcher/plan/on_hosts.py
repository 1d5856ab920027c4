"""A plan once it is known which machines carry the run out, and as one of them reads it."""

from collections.abc import Sequence

import msgspec

from launcher.plan.model import NodePlan, Plan


def with_hosts(plan: Plan, hosts: Sequence[tuple[str, str]], away: Sequence[tuple[str, str]] = ()) -> Plan:
    """The plan with its nodes on these hosts, each a name and an address, the leader first.

    What is more than the run needs are spares. An address may be left open ("") for its host to find out. Nobody waits
    for those that are away, nor are they counted among the hosts.
    """
    here = len(hosts)
    nodes = tuple(
        NodePlan(index, address, spare=index >= min(plan.nodes_max, here), gpus=None, host=name)
        for index, (name, address) in enumerate((*hosts, *away))
    )
    return msgspec.structs.replace(plan, nodes=nodes, away=tuple(range(here, len(nodes))))


def kept_at(plan: Plan, run_dir: str, python: str = "") -> Plan:
    """The plan as a machine reads it that keeps the run's folder there, beside those of the runs that it follows, and
    has that interpreter for its ranks."""
    entry = msgspec.structs.replace(plan.entry, python=python or plan.entry.python)
    beside = run_dir.rpartition("/")[0]
    awaited = tuple(msgspec.structs.replace(one, run_dir=f"{beside}/{one.run_id}") for one in plan.awaited)
    return msgspec.structs.replace(plan, run_dir=run_dir, entry=entry, awaited=awaited)


def voters_of(plan: Plan) -> frozenset[int]:
    """The nodes that vote in the plan's attempt: those that it was opened on, where no disk is common to all of them.

    Empty where nobody votes.
    """
    if not (plan.elects and plan.disks_apart):
        return frozenset()
    return frozenset(node.index for node in plan.nodes) - {*plan.away}


def quorum(hosts: int) -> int:
    """How many hosts must be together where no disk is common to all that could tell who is the newest.

    For those with the leader half of them: the others never take over with only half.
    """
    return (hosts + 1) // 2


def may_take_over(there: int, hosts: int) -> bool:
    """Without the leader more than half is needed."""
    return 2 * there > hosts


def leader_may_be_replaced(plan: Plan) -> bool:
    """Whether others may go on without the first node while its agent still lives: that of a frozen one does.

    Those that are away too: who was only cut off while the attempt was opened may vote for another leader.
    """
    hosts = len(plan.nodes)
    return plan.elects and may_take_over(hosts - 1, hosts)
