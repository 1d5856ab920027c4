"""Adapt a plan to the hosts that a run has got: which nodes are on which, what is needed of each, and who votes. An
attempt is one start of the run on hosts. On each host runs an agent of the launcher; that of the first one includes the
coordinator, which decides restarts. An SSH pool without a shared disk elects its leader: half of the hosts that opened
an attempt have to be together. A run of several programs has a role for each; side roles are those beside the main one.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import msgspec

from launcher.plan.model import ROLES, NodePlan, Plan


def with_hosts(plan: Plan, hosts: Sequence[tuple[str, str]], away: Sequence[tuple[str, str]] = ()) -> Plan:
    """Return the plan with its nodes on these hosts, each (name, address), the leader first.

    Hosts beyond the run's number of nodes are spares. An address of "" means that the host finds out its own. `away`
    are hosts that were lost: they get node numbers, but the run does not wait for them. Each role of a run with
    several gets its own share of the hosts: as many as it has nodes, from number `first_host` of its plan on. Where
    hosts elect a leader, the main role has agents on all of them, of which those beyond its nodes only vote, and the
    side roles' coordinators are on the first host.
    """
    roles = tuple(with_hosts(one, hosts) for one in plan.roles)
    votes, coordinator = bool(plan.spec.roles) and plan.elects, ""
    if plan.role and not votes:
        coordinator = hosts[0][1] if plan.elects else ""
        hosts = hosts[plan.first_host :][: plan.nodes_max]
    here = len(hosts)
    nodes = tuple(
        NodePlan(
            index, address, spare=index >= min(plan.nodes_max, here), gpus=None, host=name,
            votes_only=votes and index >= plan.nodes_max,
        )
        for index, (name, address) in enumerate((*hosts, *away))
    )  # fmt: skip
    return msgspec.structs.replace(
        plan, nodes=nodes, away=tuple(range(here, len(nodes))), roles=roles, coordinator=coordinator, addresses={}
    )


def with_addresses(plan: Plan, draw: Callable[[str], str]) -> Plan:
    """Return the plan of a run of several roles with the addresses at which the roles reach each other: a HOST:PORT for
    each rank of each role, or several if the role's ranks have several ports.

    The plan of every role has the addresses of all. `draw` is called with a machine's address and returns a free
    HOST:PORT on it.
    """
    found: dict[str, list[str]] = {}
    for one in (plan, *plan.roles):
        for node in one.nodes[: one.nodes_max]:
            for key in [*one.address_keys.values()] * one.ranks_per_node:
                found.setdefault(key, []).append(draw(node.address))
    addresses = {key: tuple(some) for key, some in found.items()}
    roles = tuple(msgspec.structs.replace(one, addresses=addresses) for one in plan.roles)
    return msgspec.structs.replace(plan, addresses=addresses, roles=roles)


def least_hosts(plan: Plan) -> int:
    """Return the smallest number of hosts with which a run can continue: the least number of nodes in its spec or, with
    several roles, all hosts that it asked for.
    """
    return hosts_asked(plan) if plan.roles else plan.nodes_min


def hosts_asked(plan: Plan) -> int:
    """Return how many hosts the plan's run occupies, all its roles together, at most; spares are not counted."""
    return max(one.first_host + one.nodes_max for one in (plan, *plan.roles))


class HostShare(NamedTuple):
    """The number of CPU cores and GPUs and the memory that a run needs on one host; `memory_gb` is None if the spec
    names no memory.
    """

    cpus: int
    gpus: int
    memory_gb: float | None


class AlikeHosts(NamedTuple):
    """Consecutive hosts of a run, by index, on each of which it needs the same cores, GPUs and memory (`share`)."""

    hosts: range
    share: HostShare


def alike_hosts(plan: Plan) -> list[AlikeHosts]:
    """Return the run's hosts in order, divided into groups, with what the run needs on each host of a group. All hosts
    of a role are in one group, together with those of the next role if it needs the same on each. A role that shares
    the hosts of another one (`colocate`) adds its needs to those.
    """
    found: list[AlikeHosts] = []
    own = {one.role for one in (plan, *plan.roles) if one.role == "" or plan.spec.roles[one.role].colocate is None}
    for role in dict.fromkeys(one.role for one in (plan, *plan.roles) if one.role in own):
        of_role = [one for one in (plan, *plan.roles) if one.role == role]
        hosts = range(of_role[0].first_host, max(one.first_host + one.nodes_max for one in of_role))
        share = _most_of(plan, hosts)
        if found and found[-1].share == share:
            found[-1] = AlikeHosts(range(found[-1].hosts.start, hosts.stop), share)
        else:
            found.append(AlikeHosts(hosts, share))
    return found


def most_of_a_host(plan: Plan) -> HostShare:
    """Return the most cores, the most GPUs and the most memory that the nodes of all roles on one host need together;
    each of the three maxima may be that of another host.
    """
    return _most_of(plan, range(hosts_asked(plan)))


def _most_of(plan: Plan, hosts: range) -> HostShare:
    """Return the most cores, the most GPUs and the most memory that the programs on one of these hosts need together;
    each of the three may be that of another host.
    """
    on_each = [
        [one for one in (plan, *plan.roles) if one.first_host <= host < one.first_host + one.nodes_max]
        for host in hosts
    ]
    memory = [[one.spec.resources.memory_gb or 0.0 for one in there] for there in on_each]
    return HostShare(
        max(sum(one.ranks_per_node * one.cpus_per_rank for one in there) for there in on_each),
        max(sum(one.gpus_per_node for one in there) for there in on_each),
        max(map(sum, memory)) or None,
    )


def own_gpus(plan: Plan, visible: str | None) -> tuple[str, ...] | None:
    """Return the GPUs of this role (the plan's) on a host, as CUDA_VISIBLE_DEVICES names them: by index or id.

    `visible` is that variable's value on the host; if it is None or "", the host's GPUs are named by index.

    Return None if nothing has to be chosen here: a run of one program uses all of them, and where one machine plays all
    nodes, the plan names the GPUs of each.
    """
    if not plan.role or plan.one_machine:
        return None
    end = plan.first_gpu + plan.gpus_per_node
    return tuple((visible.split(",") if visible else [*map(str, range(end))])[plan.first_gpu : end])


def kept_at(plan: Plan, run_dir: str, python: str) -> Plan:
    """Return the plan, with those of its roles, changed for a machine that stores the run directory at `run_dir`.

    Runs that this one waits for are expected beside that directory. `python`, the path of an interpreter on that
    machine, runs the ranks, unless the spec names an interpreter by an absolute path.
    """
    named = plan.spec.run.python or ""
    entry = msgspec.structs.replace(plan.entry, python=named if named.startswith("/") else python)
    beside = run_dir.rpartition("/")[0]
    awaited = tuple(msgspec.structs.replace(one, run_dir=f"{beside}/{one.run_id}") for one in plan.awaited)
    roles = tuple(kept_at(one, f"{run_dir}/{ROLES}/{one.run_dir.rpartition('/')[2]}", python) for one in plan.roles)
    return msgspec.structs.replace(plan, run_dir=run_dir, entry=entry, awaited=awaited, roles=roles)


def voters_of(plan: Plan) -> frozenset[int]:
    """Return the nodes that vote for the leader of the plan's attempt: those with which it was opened.

    Return an empty set if nodes share a disk or this is a side role, where nobody votes.
    """
    if not (plan.elects and plan.disks_apart) or plan.coordinator:
        return frozenset()
    return frozenset(node.index for node in plan.nodes) - {*plan.away}


def quorum(hosts: int) -> int:
    """Return how many of the `hosts` must be connected, with the leader among them, to continue without a shared disk.

    Half of them, rounded up, suffice, because the others may take over only with more than half.
    """
    return (hosts + 1) // 2


def may_take_over(connected: int, hosts: int) -> bool:
    """Return whether `connected` hosts of `hosts` may go on without the leader: only more than half of them may."""
    return 2 * connected > hosts


def leader_may_be_replaced(plan: Plan) -> bool:
    """Return whether other hosts may elect another leader while the agent of the first node is still alive, perhaps
    frozen: the hosts elect leaders, and without the first one they are more than half. It is True for the plan of a
    side role whose coordinator is on another host.

    Hosts in the plan's `away`, which were lost before the attempt was opened, count as the others do, because a host
    that was only cut off may vote.
    """
    hosts = len(plan.nodes)
    return bool(plan.coordinator) or (plan.elects and may_take_over(hosts - 1, hosts))
