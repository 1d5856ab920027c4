"""Keep surviving ranks in their processes after others were killed (`recovery.mode` hot or auto). A generation is one
set of ranks that train together; its members are the nodes with those ranks. A spare is a node beyond those that the
run needs, ready to replace one. In place means in the running processes.

Only dead ranks are restarted, and ranks that had not met the others yet: on their node, or if that is lost or drained,
on a spare. Without a spare the run continues with fewer ranks, if the spec's range and all ranks allow it. The ranks
themselves make sure that no step is lost; if one cannot, it fails, and then all are replaced, as after any other
failure.
"""

from collections.abc import Collection, Iterable, Sequence
from math import inf

import msgspec

from launcher.coordinator import verdict
from launcher.coordinator.attempt import Attempt, AttemptPhase
from launcher.coordinator.classify import classify, failed
from launcher.coordinator.closing import Aftermath
from launcher.coordinator.generation import Generation, Rank
from launcher.coordinator.nodes import KnownNode, Presence
from launcher.coordinator.opening import START_S, copies_in_memory, place, preferred, silence_of, starts
from launcher.states import Cause
from launcher.wire.messages import ContinueInPlace

WARM, AUTO = "warm", "auto"


class HotOpener:
    """The part of the coordinator that opens a generation after a failure in which surviving ranks keep their
    processes.

    If there is an obstacle, such as a rank that ended without being killed or a node that is cut off, it opens none,
    and the coordinator replaces all ranks.
    """

    def __init__(self, attempt: Attempt, aftermath: Aftermath) -> None:
        self._attempt = attempt
        self._aftermath = aftermath

    def continue_in_place(self) -> bool:
        """Open the next generation in place after a rank failed by itself or its node was lost.

        Return False if all ranks have to be replaced instead, which the caller does; the reason is recorded together
        with the restart. Otherwise return True, also if this cannot be decided yet: the caller calls again once all
        ranks of the open generation have started, or those of drained nodes have ended.
        """
        attempt = self._attempt
        if attempt.rules.mode == WARM:
            return False
        if self._starts_in_place or attempt.leaving:
            return True  # it is asked again once all of its ranks have started, or those of drained nodes have ended
        if self._nobody_asked:
            return False
        for index in attempt.current.members:
            if attempt.nodes[index].link is Presence.LOST:
                attempt.current.lose(index)  # several at once: the other losses follow right after this one
        lost = attempt.current.lost
        members = self._members(attempt.current, lost)
        attempt.warm_because = self._obstacle(members, lost)
        if attempt.warm_because:
            return False
        found, killed = attempt.lost, any(not end.stopping for end in attempt.current.failures)
        if found is None or (found.planned and killed):
            found = verdict.of_exits(attempt.current, preempting=False)
        who = _who(attempt.current, members)
        if not self._aftermath.may_continue_in_place(found, who):
            attempt.warm_because = "there were several kills without a step in between"
            return False
        number = attempt.next_number()
        each = attempt.plan.ranks_per_node
        self._open(Generation(number, members, each, silence_of(attempt), attempt.mono), who)
        return True

    def join(self, generation: Generation, newcomers: set[int]) -> None:
        """Open `generation`, a new one, in place. It includes the ranks of the nodes in `newcomers`, which have started
        and wait to connect to the others.
        """
        new = [str(rank.number) for rank in generation.ranks if rank.node in newcomers]
        who = f"rank {new[0]} joins" if len(new) == 1 else f"ranks {', '.join(new)} join"
        left = len(generation.ranks) - len(new)
        self._open(generation, f"{who}, the other {left} stay{'s' if left == 1 else ''}", started=newcomers)

    @property
    def _nobody_asked(self) -> bool:
        """Return True if neither the spec nor any rank asked to continue in place; then the user need not be told why
        the run does not.
        """
        return self._attempt.rules.mode == AUTO and not any(rank.can_continue for rank in self._attempt.current.ranks)

    @property
    def _starts_in_place(self) -> bool:
        """Return whether survivors and new ranks of the open generation are still connecting to each other."""
        attempt = self._attempt
        return attempt.phase is AttemptPhase.STARTING and attempt.current.in_place

    def can_without(self, node: KnownNode) -> bool:
        """Return whether the other ranks could stay in their processes if this node's ranks ended now. If not, keep the
        reason, which is recorded together with the restart.

        While ranks are connecting to each other in place, that cannot be found out: the answer is then True for any
        node but the coordinator's, and the caller has to ask again afterwards.
        """
        if self._starts_in_place:
            return node.index != self._attempt.plan.nodes[0].index
        why = self.obstacle_without({node.index})
        self._attempt.warm_because = why or ""
        return why == ""

    def obstacle_without(self, leave: set[int]) -> str | None:
        """Return why the other ranks could not stay if the ranks of the nodes in `leave` ended now: "" if they could,
        None if this run does not continue in place at all.
        """
        if self._attempt.rules.mode == WARM or self._nobody_asked:
            return None
        return self._obstacle(self._members(self._attempt.current, leave), leave)

    def _members(self, generation: Generation, lost: set[int]) -> tuple[int, ...]:
        """Return the members of the next generation, as node indexes in the order of their group rank.

        They are those of `generation`, the open one, without the nodes in `lost`, whose places spares take; places for
        which there is no spare are closed.
        """
        nodes = self._attempt.nodes
        if not lost:
            return generation.members
        stay = [nodes[index] for index in generation.members if index not in lost]
        free = preferred([nodes[index] for index in nodes.usable], self._attempt.plan.nodes[0].index, len(lost))
        return place(generation.members, [*stay, *free], len(generation.members))

    def _obstacle(self, members: Sequence[int], lost: set[int]) -> str:
        """Return why the next generation, on the nodes `members`, cannot continue in place after the present one has
        lost the nodes `lost`, such as a rank whose training cannot, or a node that is cut off; "" if it can.
        """
        attempt, generation = self._attempt, self._attempt.current
        if attempt.phase is not AttemptPhase.RUNNING:
            return "the generation had just begun"
        if attempt.plan.disks_apart:
            return "each node has a disk of its own"
        there = [attempt.nodes[index] for index in generation.members if index not in lost]
        if generation.returned - lost or not all(node.is_reachable for node in there):
            return "a node was cut off"
        if members[:1] != (attempt.plan.nodes[0].index,):
            return self._no_spare(lost)
        if len(members) < len(generation.members) and (why := self._cannot_be_fewer(members, lost)):
            return f"{self._no_spare(lost)}{why}"
        if why := self._could_be_more(members, lost):
            return why
        gone = [rank for rank in generation.ranks if not rank.live or rank.node in lost]
        if len(gone) == len(generation.ranks):
            return "no rank is left"
        for rank in gone:
            if rank.node in lost:
                continue
            if rank.exit is None or not failed(rank.exit):
                return f"rank {rank.number} had left"
            cause = classify(rank.exit)
            if cause is not Cause.KILLED and not (_is_to_meet(rank) and cause is Cause.COMMUNICATION):
                return f"rank {rank.number} was not killed"
        live = [rank for rank in generation.ranks if rank.live and rank.node not in lost]
        unable = next((rank for rank in live if not rank.can_continue and not _is_to_meet(rank)), None)
        if unable is not None:
            return f"rank {unable.number} has not reported that its training can continue in place"
        return "" if any(rank.can_continue for rank in live) else "no rank is left that has the state of the training"

    def _no_spare(self, lost: Iterable[int]) -> str:
        """Return the text that no spare is ready to replace the nodes in `lost`."""
        return f"no spare is ready to take the place of {_names(self._attempt.nodes[index] for index in sorted(lost))}"

    def _cannot_be_fewer(self, members: Sequence[int], lost: set[int]) -> str:
        """Return why the ranks of `members` cannot continue without those of `lost`, as the end of a sentence that
        begins with a comma; return "" if they can.

        They can if three things hold: `members` are at least `plan.nodes_min` nodes; each of them has ranks already in
        the present generation; and every rank that is not on a node in `lost` still runs and has reported that it can
        continue with fewer ranks.
        """
        plan, generation = self._attempt.plan, self._attempt.current
        if len(members) < plan.nodes_min:
            return f", and fewer than {plan.nodes_min} nodes are left"
        if not set(members) <= set(generation.members):
            return ", only of some of them"
        left = [rank for rank in generation.ranks if rank.node not in lost]
        if any(not _survives(rank) for rank in left):
            return ", and not all others stay"
        unable = next((rank for rank in left if not (rank.resizes or rank.goes_back)), None)
        return "" if unable is None else f", and rank {unable.number} cannot continue with fewer ranks"

    def _could_be_more(self, members: Sequence[int], lost: set[int]) -> str:
        """Return why more nodes than `members` should get ranks now, by a restart of all; return "" if there is no
        reason.

        The reason is that another node is ready, and some rank that survives, on a node outside of `lost`, could not
        accept additional ranks later, while it trains.
        """
        attempt = self._attempt
        ready = attempt.nodes.usable - lost - {*members}
        left = [rank for rank in attempt.current.ranks if rank.live and rank.node not in lost]
        can = all(rank.resizes or _is_to_meet(rank) for rank in left)
        if len(members) == attempt.plan.nodes_max or not ready or can:
            return ""
        return f"{attempt.nodes[min(ready)]} is ready, and not all ranks can continue with more"

    def _open(self, generation: Generation, who: str, started: Collection[int] = ()) -> None:
        """Open the generation in place: send the agents of nodes with new ranks a Start, and the agents of nodes with
        survivors the message to continue with these ranks.

        New ranks on the nodes in `started` run already, and the agents there get no message. `who` is a text for the
        event that names survivors and replacements.
        """
        attempt, before = self._attempt, self._attempt.current
        number, members, lost = generation.number, generation.members, before.lost
        lived = {(rank.node, rank.local): rank for rank in before.ranks if _survives(rank)}
        for rank in generation.ranks:
            was = lived.get((rank.node, rank.local))
            rank.can_continue, rank.joins = (None, True) if was is None else (True, False)
            rank.active_at = attempt.mono
            if was is not None:
                rank.resizes, rank.goes_back = was.resizes, was.goes_back
        attempt.generation, attempt.phase, attempt.lost = generation, AttemptPhase.STARTING, None
        attempt.start_by, attempt.blame_at = attempt.mono + START_S, inf
        attempt.pace.restart(in_place=True)
        generation.in_place = generation.led = True  # ranks that meet in place look for rank 0 again at once
        ledger = attempt.ledger
        ledger.generation, ledger.opened_at = number, ledger.mono
        attempt.standing.message = f"generation {number} starts"
        ledger.record("generation_opened", f"generation {number}: {who}")
        restarts = sum(attempt.standing.restarts.values())
        newcomers = [index for index in members if index in lost or index not in before.members]
        each = attempt.plan.ranks_per_node
        chosen = [attempt.nodes[index] for index in members]
        words = starts(number, chosen, each, restarts, copies_in_memory(attempt.plan, chosen))
        for index, start in sorted(words, key=lambda word: word[0] in newcomers):
            if index in started:
                continue
            attempt.nodes[index].holds = number
            attempt.nodes.settle(attempt.nodes[index])
            if index in newcomers:
                ledger.send(index, msgspec.structs.replace(start, joins=True))
            else:
                survivors = tuple(rank.number for rank in generation.of_node(index) if _survives(rank))
                ledger.send(index, ContinueInPlace(start, survivors, at_step_end=bool(started)))


def _who(generation: Generation, members: Sequence[int]) -> str:
    """Return a text on the ranks of `generation` if `members` are the nodes of the next one: which ranks are restarted
    and which keep their processes, such as `rank 2 is restarted, the other 3 stay`, and which node replaces which.
    """
    if len(members) < len(generation.members):
        left = sum(len(generation.of_node(node)) for node in members)
        who = f"the {left} surviving ranks stay and continue" if left > 1 else "the surviving rank stays and continues"
        without = ", ".join(str(node) for node in generation.members if node not in members)
        return f"{who} without node {without}"
    gone = [str(rank.number) for rank in generation.ranks if not _survives(rank)]
    new = f"rank {gone[0]} is" if len(gone) == 1 else f"ranks {', '.join(gone)} are"
    moved = [
        f"node {now} takes the place of node {was}"
        for was, now in zip(generation.members, members, strict=True)
        if was != now
    ]
    return "; ".join([f"{new} restarted, the other {len(generation.ranks) - len(gone)} stay", *moved])


def _names(nodes: Iterable[KnownNode]) -> str:
    """Return the nodes as text, separated by commas: `node 1 (host-b), node 2 (host-c)`."""
    return ", ".join(map(str, nodes))


def _survives(rank: Rank) -> bool:
    """Return whether the rank is live and has reported that it can continue in place."""
    return rank.live and rank.can_continue is True


def _is_to_meet(rank: Rank) -> bool:
    """Return whether the rank was started to take over the training's state from other ranks and has not done so
    yet.
    """
    return rank.joins and rank.can_continue is None
