"""Add ranks on nodes that become usable while ranks train in place; the running ranks barely stop for it. A generation
is one set of ranks that train together.

A usable node gets Start(joins); its ranks import and wait to meet the others. Then ContinueInPlace goes to the others:
they leave the step under way, and all continue from the one before it.

Until that message the running ranks are not involved: if anything fails before it, only the new ranks are stopped.
"""

from collections.abc import Iterable, Iterator
from math import inf

from msgspec.structs import replace

from launcher.coordinator.attempt import Attempt, AttemptPhase, Joining
from launcher.coordinator.classify import classify, describe
from launcher.coordinator.generation import Generation, Rank
from launcher.coordinator.in_place.continuing import WARM, HotOpener
from launcher.coordinator.nodes import KnownNode
from launcher.coordinator.opening import START_S, copies_in_memory, place, preferred, silence_of, starts
from launcher.wire.messages import Exited, Heartbeat, Started, Stop, ToCoordinator


class Joiner:
    """The part of the coordinator that starts ranks on additional nodes. Once these wait to join, it opens a generation
    of them and the running ranks, which stay in their processes.
    """

    def __init__(self, attempt: Attempt, in_place: HotOpener) -> None:
        self._attempt = attempt
        self._in_place = in_place

    def deadline(self) -> float:
        """Return the monotonic time by which the new ranks have to start, or infinity if none are starting."""
        return inf if self._attempt.joining is None else self._attempt.joining.gives_up_at

    def check(self) -> None:
        """Begin to start additional ranks if nodes for them are usable. If they are being started, add them once all
        wait to join, or stop them if one has ended or is late, a node is lost, or the running ranks cannot be joined.

        Call it after every event.
        """
        joining = self._attempt.joining
        if self._attempt.phase is AttemptPhase.OVER:
            return
        if joining is None:
            if members := self._grown():
                self._begin(members)
        elif why := self._obstacle(joining):
            self._abandon(joining, why)
        elif all(rank.waits for rank in self._ranks(joining)) and not joining.generation.starting & joining.newcomers:
            self._attempt.joining = None
            self._in_place.join(joining.generation, joining.newcomers)

    def receive(self, message: ToCoordinator) -> None:
        """Handle a message about ranks that are starting to join; ignore any other message."""
        joining = self._attempt.joining
        if joining is None or message.node not in joining.newcomers:
            return
        match message:
            case Started() if message.generation == joining.generation.number:
                joining.generation.start(message.node, message.pids)
            case Heartbeat() if message.generation == joining.generation.number:
                joining.generation.receive(message, self._attempt.mono)
            case Exited() if message.exit.generation == joining.generation.number:
                if message.exit.node == message.node and joining.generation.end(message.exit, message.tail):
                    self._attempt.ledger.record_exit(message.exit)
            case _:
                pass

    def _grown(self) -> tuple[int, ...]:
        """Return the indexes of the nodes of a larger generation by group rank, or () if none can be formed now.

        That is so if the present one is as large as the plan allows or has made no step yet, if a stop, loss or failure
        is being handled, if its ranks could not continue in place, or if no new node is usable.
        """
        attempt = self._attempt
        if attempt.phase is not AttemptPhase.RUNNING or self._is_disturbed() or not attempt.pace.moves:
            return ()
        plan, nodes = attempt.plan, attempt.nodes
        if len(attempt.current.members) >= plan.nodes_max:
            return ()
        new = [nodes[index] for index in nodes.usable if nodes[index].could_not_join != nodes[index].process]
        if not new or not self._others_can():
            return ()
        there = preferred([*map(nodes.__getitem__, attempt.current.members), *new], plan.nodes[0].index, plan.nodes_max)
        members = place(attempt.current.members, there, plan.nodes_max)
        return members if len(members) > len(attempt.current.members) else ()

    def _is_disturbed(self) -> bool:
        """Return whether a stop, a loss or a failure is being handled, during which no ranks may join."""
        attempt = self._attempt
        asked = attempt.stop is not None or attempt.fenced != ""
        return asked or attempt.lost is not None or bool(attempt.leaving or attempt.current.failures)

    def _others_can(self) -> bool:
        """Return whether all running ranks can continue in place in a process group of another size: `recovery.mode`
        allows it, the nodes share a disk and answer, and each rank has reported that its program can do so.
        """
        attempt = self._attempt
        if attempt.rules.mode == WARM or attempt.plan.disks_apart:
            return False
        there = map(attempt.nodes.__getitem__, attempt.current.members)
        return all(node.is_reachable for node in there) and all(
            rank.live and rank.can_continue and rank.resizes for rank in attempt.current.ranks
        )

    def _begin(self, members: tuple[int, ...]) -> None:
        """Begin the next generation, with the nodes `members`: order those of them that have no ranks yet to start
        theirs. The running ranks train on until the new ones are ready to join.
        """
        attempt, each = self._attempt, self._attempt.plan.ranks_per_node
        number, newcomers = attempt.next_number(), {*members} - {*attempt.current.members}
        generation = Generation(number, members, each, silence_of(attempt), attempt.mono)
        gives_up_at = attempt.mono + max(START_S, attempt.rules.hang_at_start_s)
        attempt.joining = Joining(generation, newcomers, attempt.current.number, attempt.mono, gives_up_at)
        ranks = ", ".join(str(rank.number) for rank in self._ranks(attempt.joining))
        text = f"{_names(map(attempt.nodes.__getitem__, sorted(newcomers)))}: ranks {ranks} start, to join the others"
        attempt.ledger.record("joining", text)
        restarts = sum(attempt.standing.restarts.values())
        chosen = [attempt.nodes[index] for index in members]
        for index, start in starts(number, chosen, each, restarts, copies_in_memory(attempt.plan, chosen)):
            if index in newcomers:
                attempt.nodes[index].holds = number
                attempt.nodes.settle(attempt.nodes[index])
                attempt.ledger.send(index, replace(start, joins=True))

    def _obstacle(self, joining: Joining) -> str:
        """Return why the new ranks cannot join any more, or "".

        If a rank has ended or is late, or its node can have no ranks, record the node's present agent in
        `could_not_join`: as long as the node has this agent, no ranks are started there to join. A node that was cut
        off is not recorded.
        """
        attempt = self._attempt
        if attempt.phase is not AttemptPhase.RUNNING or attempt.current.number != joining.after or self._is_disturbed():
            return "the others have something else to do"
        if not self._others_can():
            return "not all other ranks can continue with more ranks any more"
        for node in map(attempt.nodes.__getitem__, sorted(joining.newcomers)):
            if not node.is_reachable or node.holds != joining.generation.number:
                return f"{node} was cut off"
            if node.is_left_out or node.suspected_at >= joining.began_at:
                node.could_not_join = node.process
                return f"{node} cannot have ranks"
        for rank in self._ranks(joining):
            if rank.exit is not None:
                attempt.nodes[rank.node].could_not_join = attempt.nodes[rank.node].process
                return describe(rank.exit, classify(rank.exit))
        if attempt.mono >= joining.gives_up_at:
            for rank in self._ranks(joining):
                if not rank.waits:
                    attempt.nodes[rank.node].could_not_join = attempt.nodes[rank.node].process
            return "its ranks did not come to meet the others in time"
        return ""

    def _abandon(self, joining: Joining, why: str) -> None:
        """Stop the new ranks, for the reason `why`; if a generation is being closed, its closing waits for their end,
        too.
        """
        attempt = self._attempt
        attempt.joining = None
        nodes = [attempt.nodes[index] for index in sorted(joining.newcomers)]
        attempt.ledger.record("joining_failed", f"{_names(nodes)} did not join the others: {why}")
        for node in nodes:
            if node.is_reachable and node.holds == joining.generation.number:
                attempt.ledger.send(node.index, Stop(joining.generation.number, 0.0))
                if attempt.closing is not None:
                    attempt.closing.waits.add(node.index)

    def _ranks(self, joining: Joining) -> Iterator[Rank]:
        """Yield the ranks of the generation to be opened that are on the nodes which join."""
        return (rank for rank in joining.generation.ranks if rank.node in joining.newcomers)


def _names(nodes: Iterable[KnownNode]) -> str:
    """Return the nodes as text, separated by commas."""
    return ", ".join(map(str, nodes))
