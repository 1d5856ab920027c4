"""Who gets which ranks: pure functions from the nodes that can be used to their order in a generation."""

from collections.abc import Collection, Iterable, Sequence

from launcher.agent.coordination.nodes import KnownNode, Presence
from launcher.agent.messages import ReplicaAddress, Start


def place(before: Sequence[int], usable: Collection[KnownNode], most: int) -> tuple[int, ...]:
    """Node indexes by group rank, node 0 first.

    Who was in the last generation keeps its place; others fill the gaps, then the end; gaps that stay are closed.
    """
    present = {node.index for node in usable}
    order = sorted(usable, key=lambda node: (node.index != 0, node.spare, node.index))
    known = set(before)
    newcomers = iter([node.index for node in order if node.index not in known])
    places = [index if index in present else next(newcomers, None) for index in before]
    chosen = [index for index in places if index is not None] + list(newcomers)
    return tuple(chosen[:most])


def replicas(members: Sequence[KnownNode], others: Iterable[KnownNode]) -> tuple[ReplicaAddress, ...]:
    """Who may have files of checkpoints: the members by group rank, then all others that joined and are not lost."""
    inside, here = {node.index for node in members}, (Presence.UP, Presence.UNKNOWN)
    outside = [node for node in others if node.link in here and node.replica_port and node.index not in inside]
    return tuple(ReplicaAddress(node.index, node.address, node.replica_port) for node in (*members, *outside))


def starts(
    generation: int,
    members: Sequence[KnownNode],
    ranks_per_node: int,
    restarts: int,
    replicas: tuple[ReplicaAddress, ...] = (),
) -> list[tuple[int, Start]]:
    """Each member's Start; without them all of one size, however many nodes there are."""
    master = members[0]
    return [
        (
            node.index,
            Start(
                generation=generation,
                first_rank=group_rank * ranks_per_node,
                local_world_size=ranks_per_node,
                world_size=len(members) * ranks_per_node,
                group_rank=group_rank,
                group_world_size=len(members),
                master_addr=master.address,
                master_port=master.port,
                restarts=restarts,
                replicas=replicas,
            ),
        )
        for group_rank, node in enumerate(members)
    ]
