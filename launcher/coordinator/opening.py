"""Open a generation, a set of ranks that train together: decide when that is possible, and which ranks a node gets. The
members of a generation are the nodes with its ranks.
"""

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from math import inf

from launcher.coordinator import verdict
from launcher.coordinator.attempt import Attempt, AttemptPhase, Awaited
from launcher.coordinator.closing import Aftermath
from launcher.coordinator.generation import Generation, Silence
from launcher.coordinator.nodes import KnownNode, Presence
from launcher.plan.model import Plan
from launcher.wire.messages import ReplicaAddress, Start

START_S = 120.0  # from Start, or from news of a checkpoint being fetched, to Started, for a node that reports


@dataclass(frozen=True, slots=True)
class Search:
    """The places where a starting node looks for checkpoints without a shared disk, and whether it may begin without
    one.
    """

    replicas: tuple[ReplicaAddress, ...] = ()  # nodes that may have files of checkpoints
    all_here: bool = True  # every node that may have a checkpoint is among `replicas`
    kept: bool = False  # the run is known to have a checkpoint
    anew: bool = False  # ranks may begin without a checkpoint


class Opener:
    """The part of the coordinator that opens the next generation, or ends the attempt if no further one is possible."""

    def __init__(
        self, attempt: Attempt, aftermath: Aftermath, links_are_known: Callable[[Callable[[], Sequence[int]]], bool]
    ) -> None:
        self._attempt = attempt
        self._aftermath = aftermath
        self._links_are_known = links_are_known

    def open_if_ready(self) -> None:
        """Open the next generation if the first node and, with it, as many nodes as the plan needs at least are ready.
        The attempt's first generation also waits some time for the plan's other nodes; after a failure the remaining
        nodes continue at once.

        End the attempt if that was requested, a newer start of the run took over, its time is up, too few nodes can
        become ready, or a checkpoint that it waits for has not come in time. In any other case do nothing yet.
        """
        attempt, aftermath = self._attempt, self._aftermath
        if attempt.stop == "cancel":
            aftermath.end_cancelled()
        elif attempt.fenced:
            aftermath.end_fenced()
        elif attempt.stop == verdict.RESTART:
            aftermath.end_to_restart()
        elif attempt.stop is not None:
            aftermath.fail(verdict.of_stop(attempt.stop), can_regroup=False)
        elif attempt.mono >= attempt.limit_at:
            aftermath.fail(verdict.of_limit(attempt.plan), can_regroup=False)
        elif not attempt.gathering.may_succeed(attempt.mono):
            aftermath.fail(attempt.gathering.shortage(), can_regroup=False)
        elif attempt.awaited is not None and not self._has_come(attempt.awaited):
            if attempt.mono >= attempt.awaited.until:
                aftermath.end_without_checkpoint(attempt.awaited)
        elif attempt.gathering.complete(attempt.mono) and attempt.outvoted() is None:
            unfit = len(attempt.nodes.unfit)
            if self._links_are_known(self._chosen):
                self._open(self._chosen())
            elif len(attempt.nodes.unfit) > unfit:
                self.open_if_ready()  # without who was left out
        elif attempt.generation is None:
            attempt.standing.message = ""  # `Attempt.state` says what the run waits for

    def _has_come(self, awaited: Awaited) -> bool:
        """Return True if a node has come that was absent when the wait `awaited` for a checkpoint began, so that its
        disk can be searched for one. While any of those that came is not ready yet, return False.
        """
        nodes = self._attempt.nodes
        come = nodes.connected - awaited.here
        return bool(come) and not come & nodes.hopeful

    def _chosen(self) -> tuple[int, ...]:
        """Return the indexes of the nodes that would get ranks if a generation were opened now, in order of their group
        rank: at most `plan.nodes_max` of the usable nodes. If there are more, those with drawbacks are left out first.
        """
        attempt, plan = self._attempt, self._attempt.plan
        before = attempt.generation
        usable = preferred(
            [attempt.nodes[index] for index in attempt.nodes.usable], plan.nodes[0].index, plan.nodes_max
        )
        return place(before.members if before else (), usable, plan.nodes_max)

    def _open(self, members: tuple[int, ...]) -> None:
        """Open a generation on `members`: record it, and send each member its `Start`."""
        attempt, plan = self._attempt, self._attempt.plan
        number = attempt.next_number()
        generation = Generation(number, members, plan.ranks_per_node, silence_of(attempt), attempt.mono)
        attempt.generation, attempt.phase, attempt.lost = generation, AttemptPhase.STARTING, None
        attempt.start_by, attempt.blame_at = attempt.mono + START_S, inf
        attempt.pace.restart()
        self._note(generation)
        restarts = sum(attempt.standing.restarts.values())
        chosen = [attempt.nodes[index] for index in members]
        search = self._search(chosen) if plan.disks_apart else copies_in_memory(plan, chosen)
        for index, start in starts(number, chosen, plan.ranks_per_node, restarts, search):
            node = attempt.nodes[index]
            node.holds = number
            attempt.nodes.settle(node)
            attempt.ledger.send(index, start)

    def _search(self, members: Sequence[KnownNode]) -> Search:
        """Return where the agents of `members` look for checkpoints, in a run whose nodes have a disk each: which nodes
        they ask, whether no other node may have a checkpoint, whether the run is known to have one, and whether ranks
        may begin without.
        """
        attempt = self._attempt
        away = attempt.nodes.away(since=attempt.mono - attempt.rules.gone_after_s)
        all_here = attempt.by_person and all(node.link is Presence.UNKNOWN for node in away)  # these are asked
        return Search(replicas(members, attempt.nodes), all_here, attempt.kept, attempt.may_begin_anew)

    def _note(self, generation: Generation) -> None:
        """Record the event `generation_opened`, and show the generation in the run's status."""
        standing, ledger = self._attempt.standing, self._attempt.ledger
        standing.started_at = standing.started_at or ledger.now.wall
        standing.message = f"generation {generation.number} starts"
        ledger.generation, ledger.opened_at = generation.number, ledger.mono
        members = generation.members
        nodes = ", ".join(map(str, members)) if len(members) <= 8 else f"{len(members)} of them"
        ranks = f"{len(generation.ranks)} rank{'s' if len(generation.ranks) != 1 else ''}"
        text = f"generation {generation.number}: {ranks} on node {nodes}"
        ledger.record("generation_opened", text)


def copies_in_memory(plan: Plan, members: Sequence[KnownNode]) -> Search:
    """Return where a starting node looks for snapshots in memory: at all nodes in `members`, which keep copies for each
    other, or nowhere if the plan keeps none.
    """
    return Search(replicas(members, ())) if plan.keeps_copies else Search()


def silence_of(attempt: Attempt) -> Silence:
    """Return the spec's limits on how long a rank may report and print nothing, before its first report and after
    it.
    """
    return Silence(attempt.rules.hang_after_s, attempt.rules.hang_at_start_s)


def preferred(usable: Sequence[KnownNode], head: int, most: int) -> list[KnownNode]:
    """Return `usable` without nodes that have a drawback: their ranks are to be moved away, their disk or a start of a
    rank on them has failed, they are slow, or they still import modules. The worst are left out first.

    If fewer than `most` nodes, the number wanted, would remain, leave out fewer. Node `head`, which coordinates, is
    always kept.
    """

    def drawbacks(node: KnownNode) -> tuple[bool, float, bool, bool]:
        """Return what speaks against the node, the worst first."""
        return node.moves, node.suspected_at, node.slow != "", node.preparing != ""

    suspects = [node for node in usable if any(drawbacks(node)) and node.index != head]
    suspects.sort(key=drawbacks, reverse=True)
    left_out = {node.index for node in suspects[: max(0, len(usable) - most)]}
    return [node for node in usable if node.index not in left_out]


def place(before: Sequence[int], usable: Collection[KnownNode], most: int) -> tuple[int, ...]:
    """Choose at most `most` of the `usable` nodes for a generation; return their indexes in order of their group rank.

    `before` has the indexes of the last generation's members; members that are still usable keep their order. Other
    nodes take the places of the members that are not, and then further ones at the end: first the node with the index
    0, then those to which ranks are to be moved, then those that are no spares. Places for which no node is left are
    closed, so that later members move up.
    """
    present = {node.index for node in usable}
    order = sorted(usable, key=lambda node: (node.index != 0, not node.wanted, node.spare, node.index))
    known = set(before)
    newcomers = iter([node.index for node in order if node.index not in known])
    places = [index if index in present else next(newcomers, None) for index in before]
    chosen = [index for index in places if index is not None] + list(newcomers)
    return tuple(chosen[:most])


def replicas(members: Sequence[KnownNode], others: Iterable[KnownNode]) -> tuple[ReplicaAddress, ...]:
    """Return the addresses of nodes that may have files of checkpoints: the members by group rank, then those of
    `others` whose agent is connected or out of reach but not lost, and that have a port for such files.
    """
    inside, here = {node.index for node in members}, (Presence.UP, Presence.UNKNOWN)
    outside = [node for node in others if node.link in here and node.replica_port and node.index not in inside]
    return tuple(ReplicaAddress(node.index, node.address, node.replica_port) for node in (*members, *outside))


def starts(
    generation: int,
    members: Sequence[KnownNode],
    ranks_per_node: int,
    restarts: int,
    search: Search,
) -> list[tuple[int, Start]]:
    """Return (node index, `Start` message) for each member of a generation.

    Ranks are numbered in the order of `members`, whose first is the master. `generation` is its number, `restarts`
    counts the run's restarts so far, and `search` says where to look for checkpoints.
    """
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
                replicas=search.replicas,
                all_here=search.all_here,
                kept=search.kept,
                anew=search.anew,
            ),
        )
        for group_rank, node in enumerate(members)
    ]
