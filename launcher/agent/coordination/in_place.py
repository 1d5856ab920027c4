"""recovery.mode hot: ranks were killed, and those that live keep their processes in the next generation.

Only what died is started anew, and who was yet to meet the others when another one died: on its node, or, where that is
lost or drained, on a spare. The ranks themselves see to it that no step is lost; where one of them cannot, it fails,
and then all are replaced, as after any other failure.
"""

from collections.abc import Iterable, Sequence
from math import inf

import msgspec

from launcher.agent.coordination import verdict
from launcher.agent.coordination.attempt import Attempt, AttemptPhase
from launcher.agent.coordination.closing import CLOSE_S, Aftermath, Closer
from launcher.agent.coordination.generation import Generation, Rank
from launcher.agent.coordination.nodes import KnownNode, Presence
from launcher.agent.coordination.opening import START_S, Search, place, silence_of, starts
from launcher.agent.coordination.verdict import Verdict
from launcher.agent.messages import GoOn, Stop
from launcher.recovery.classify import classify, failed
from launcher.words import Cause

_HOT = "hot"


class HotOpener:
    """Opens a generation after a failure without closing the one before it, where that can be."""

    def __init__(self, attempt: Attempt, aftermath: Aftermath) -> None:
        self._attempt = attempt
        self._aftermath = aftermath

    def go_on(self) -> bool:
        """After a rank has failed by itself, or its node was lost.

        False: all have to be replaced; why is told with what follows.
        """
        attempt = self._attempt
        if attempt.rules.mode != _HOT:
            return False
        if self._starts_in_place or attempt.leaving:
            return True  # it is asked again once all of its ranks have started, or those of drained nodes have ended
        for index in attempt.current.members:
            if attempt.nodes[index].link is Presence.LOST:
                attempt.current.lose(index)  # several at once: that of the others is told right after this one
        lost = attempt.current.lost
        members = self._members(attempt.current, lost)
        attempt.warm_because = self._obstacle(members, lost)
        if attempt.warm_because:
            return False
        found = attempt.lost or verdict.of_exits(attempt.current, preempting=False)
        who = _who(attempt.current, members)
        if not self._aftermath.goes_on_in_place(found, who):
            attempt.warm_because = "there were several kills without a step in between"
            return False
        self._open(members, who)
        return True

    @property
    def _starts_in_place(self) -> bool:
        attempt = self._attempt
        return attempt.phase is AttemptPhase.STARTING and any(rank.joins for rank in attempt.current.ranks)

    def obstacle_without(self, leave: set[int]) -> str | None:
        """Why the other ranks may not stay where they are, were these members to end theirs now; "": they may.

        None: they never do.
        """
        if self._attempt.rules.mode != _HOT:
            return None
        return self._obstacle(self._members(self._attempt.current, leave), leave)

    def _members(self, generation: Generation, lost: set[int]) -> tuple[int, ...]:
        """By group rank: who was in it and is not lost keeps its place, spares have the others while there are any."""
        nodes = self._attempt.nodes
        if not lost:
            return generation.members
        there = [nodes[index] for index in (*(one for one in generation.members if one not in lost), *nodes.usable)]
        return place(generation.members, there, len(generation.members))

    def _obstacle(self, members: Sequence[int], lost: set[int]) -> str:
        attempt, generation = self._attempt, self._attempt.current
        if attempt.phase is not AttemptPhase.RUNNING:
            return "the generation had just begun"
        if attempt.plan.disks_apart:
            return "each node has a disk of its own"
        there = [attempt.nodes[index] for index in generation.members if index not in lost]
        if generation.returned - lost or not all(node.hears_us for node in there):
            return "a node was cut off"
        if len(members) < len(generation.members) or members[0] != attempt.plan.nodes[0].index:
            return f"no spare is ready to take the place of {_names(attempt.nodes[index] for index in sorted(lost))}"
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
        unable = next((rank for rank in live if not rank.stays and not _is_to_meet(rank)), None)
        if unable is not None:
            return f"rank {unable.number} has not said that its training can go on in place"
        return "" if any(rank.stays for rank in live) else "no rank is left that has the state of the training"

    def _open(self, members: Sequence[int], who: str) -> None:
        attempt, before = self._attempt, self._attempt.current
        number, each, lost = before.number + 1, attempt.plan.ranks_per_node, before.lost
        generation = Generation(number, members, each, silence_of(attempt), attempt.mono)
        for rank, was in zip(generation.ranks, before.ranks, strict=True):
            rank.stays, rank.joins = (True, False) if _stays(was) else (None, True)
        attempt.generation, attempt.phase, attempt.lost = generation, AttemptPhase.STARTING, None
        attempt.start_by, attempt.blame_at = attempt.mono + START_S, inf
        attempt.pace.restart(in_place=True)
        generation.led = True  # ranks that meet in place look for rank 0 again at once
        ledger = attempt.ledger
        ledger.generation, ledger.opened_at = number, ledger.mono
        attempt.standing.message = f"generation {number} starts"
        ledger.record("generation_opened", f"generation {number}: {who}")
        restarts = sum(attempt.standing.restarts.values())
        newcomers = [index for index in members if index in lost or index not in before.members]
        words = starts(number, [attempt.nodes[index] for index in members], each, restarts, Search())
        for index, start in sorted(words, key=lambda word: word[0] in newcomers):
            attempt.nodes[index].holds = number
            attempt.nodes.settle(attempt.nodes[index])
            if index in newcomers:
                ledger.send(index, msgspec.structs.replace(start, joins=True))
            else:
                stay = tuple(rank.number for rank in before.of_node(index) if _stays(rank))
                ledger.send(index, GoOn(start, stay))


class Drainer:
    """Has the ranks of nodes moved that somebody wants to be without, once others can have their places.

    hot: Stop to such a node alone, and once it is Stopped the others go on in place, with a spare;
    else: all ranks may save and leave, and a generation without it follows. Till then it goes on as before.
    """

    def __init__(self, attempt: Attempt, closer: Closer, in_place: HotOpener) -> None:
        self._attempt = attempt
        self._closer = closer
        self._in_place = in_place

    def ask(self, index: int) -> None:
        """From now on; the first node, which coordinates, cannot be drained."""
        node = self._attempt.nodes.get(index)
        if node is None or node.drained or index == self._attempt.plan.nodes[0].index:
            return
        node.drained = True
        self._attempt.nodes.settle(node)
        self._attempt.ledger.record("drain_asked", f"node {index} is to be drained", node=index)

    def look(self) -> None:
        """A generation is open: can ranks of drained nodes move now?"""
        attempt = self._attempt
        if attempt.phase is not AttemptPhase.RUNNING or attempt.leaving or attempt.current.failures:
            return
        drained = [node for node in map(attempt.nodes.__getitem__, attempt.current.members) if node.drained]
        if not drained:
            return
        found = Verdict(Cause.PREEMPTED, f"{' and '.join(map(str, drained))} is drained", node=drained[0].index)
        indexes = {node.index for node in drained}
        obstacle = self._in_place.obstacle_without(indexes)
        if obstacle == "" and all(node.hears_us for node in drained):
            self._begin(drained, found)
        elif self._others_suffice(indexes):
            attempt.warm_because = obstacle or ""
            self._closer.close(found, saves=True)

    def _begin(self, drained: list[KnownNode], found: Verdict) -> None:
        """Their ranks are ended first: of each place there is one process at a time."""
        attempt = self._attempt
        attempt.leaving, attempt.lost = {node.index for node in drained}, found
        attempt.blame_at = attempt.mono + CLOSE_S
        attempt.standing.message = found.text
        for node in drained:
            attempt.ledger.send(node.index, Stop(attempt.current.number, 0.0))

    def _others_suffice(self, leave: set[int]) -> bool:
        nodes, plan = self._attempt.nodes, self._attempt.plan
        stay = {index for index in self._attempt.current.members if index not in leave}
        return len(stay | nodes.usable) >= plan.nodes_min and nodes.short_of(stay | nodes.usable) is None


def _who(generation: Generation, members: Sequence[int]) -> str:
    """`rank 2 is started anew, the other 3 stay`, and where those of a lost node are now."""
    gone = [str(rank.number) for rank in generation.ranks if not _stays(rank)]
    new = f"rank {gone[0]} is" if len(gone) == 1 else f"ranks {', '.join(gone)} are"
    moved = [
        f"node {now} takes the place of node {was}"
        for was, now in zip(generation.members, members, strict=True)
        if was != now
    ]
    return "; ".join([f"{new} started anew, the other {len(generation.ranks) - len(gone)} stay", *moved])


def _names(nodes: Iterable[KnownNode]) -> str:
    return ", ".join(map(str, nodes))


def _stays(rank: Rank) -> bool:
    return rank.live and rank.stays is True


def _is_to_meet(rank: Rank) -> bool:
    """It was started to meet ranks that have the state of the training, and has not taken it from them so far."""
    return rank.joins and rank.stays is None
