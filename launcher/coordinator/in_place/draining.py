"""Move ranks off nodes, permanently (drain) or once (move), in place if that is possible. A generation is one set of
ranks that train together. A spare is a node beyond those that the run needs, ready to replace one.
"""

from collections import deque
from collections.abc import Sequence

from launcher.coordinator.attempt import Attempt, AttemptPhase
from launcher.coordinator.closing import AFTER_GRACE_S, Closer
from launcher.coordinator.effects import Drain, Move
from launcher.coordinator.in_place.continuing import HotOpener
from launcher.coordinator.nodes import KnownNode
from launcher.coordinator.verdict import Verdict
from launcher.run.records import MOVED, NOT_MOVED
from launcher.states import Cause
from launcher.wire.messages import Heartbeat, ToCoordinator


class Drainer:
    """The part of the coordinator that moves the ranks of a node to other nodes, once those are ready.

    In hot mode only that node's ranks are stopped, and the others continue in place with a spare. Otherwise all ranks
    may save and exit, and a generation without the node follows. Until then the training continues unchanged. A
    *drained* node gets no ranks from then on, and keeps its present ranks until others can replace it. A node whose
    ranks *move* becomes a spare; the move is made at once if a spare is ready, or not at all.
    """

    def __init__(self, attempt: Attempt, closer: Closer, in_place: HotOpener) -> None:
        self._attempt = attempt
        self._closer = closer
        self._in_place = in_place
        self._moves: deque[Move] = deque()  # that were asked for: one after the other
        self._moving: KnownNode | None = None  # whose ranks are on their way
        self._failing: set[int] = set()  # nodes whose ranks are to go once others can have their places
        self._await_spare: set[int] = set()  # nodes that are slow, for which no spare was ready that is not

    def ask(self, request: Drain) -> None:
        """Record the request, and drain its node from now on unless that is the coordinator's node, which cannot be
        drained.

        Ignore a request for a node that is drained already or not in the plan.
        """
        node = self._attempt.nodes.get(request.node)
        if node is None or node.drained:
            return
        stays = self._coordinates(node)
        self._record_request(node, request.why, stays)
        if not stays:
            self._drain(node)

    def fails(self, node: KnownNode, why: str) -> None:
        """Drain a node with a failing device once others can take its ranks; until then it stays in use. `why` is the
        kernel's report.
        """
        if node.failing:
            return
        node.failing, first = why, self._attempt.nodes[self._attempt.plan.nodes[0].index]
        stays = self._coordinates(node)
        if not stays and node.process is not None and first.process is not None:
            same = node.process.host == first.process.host
            stays = "is on the machine of the node that coordinates the others" if same else ""
        self._record_request(node, why, stays)
        if not stays:
            self._failing.add(node.index)

    def leaves(self, node: KnownNode, why: str) -> None:
        """Record that the node's host will leave, for the reason `why`, or with "" that the host stays after all.

        The node's ranks move to a spare. If no spare comes before they have to save, all ranks save and exit while the
        host is still up; then the run continues with fewer nodes or waits for another node.
        """
        if (why == "") != (node.leaves == ""):
            rules, lead_s = self._attempt.rules, self._attempt.plan.spec.notice.lead_s
            node.leaves_by = self._attempt.mono + max(0.0, lead_s - rules.grace_s - AFTER_GRACE_S)
            goes = f"{node} is about to go, within {lead_s:g} s: {why}" if why else f"{node} stays after all"
            self._attempt.ledger.record("drain_asked", goes, node=node.index)
        node.leaves = why

    def _coordinates(self, node: KnownNode) -> str:
        """Return "coordinates the others", the reason why the node cannot leave, for the plan's first node, on which
        the coordinator runs; "" for any other.
        """
        return "coordinates the others" if node.index == self._attempt.plan.nodes[0].index else ""

    def _record_request(self, node: KnownNode, why: str, stays: str) -> None:
        """Record that a drain was requested for the reason `why` ("" if a user gave none); `stays` says why the node
        keeps its ranks for now, or is "".
        """
        text = f"node {node.index} is to be drained{f' ({why})' if why else ''}"
        if stays:
            text += f", but {stays}: it stays"
        elif node.holds and not self._attempt.nodes.usable:
            text += "; its ranks stay until others can have their places"
        self._attempt.ledger.record("drain_asked", text, node=node.index)

    def _drain(self, node: KnownNode) -> None:
        """Mark the node as drained, so that it gets no more ranks. It keeps its present ranks until others can replace
        them.
        """
        node.drained = True
        self._attempt.nodes.settle(node)

    def _drain_failing(self) -> None:
        """Drain each node with a failing device, once the other nodes with ranks and the spares are as many as the plan
        needs; until then its ranks stay, and a later call tries again.
        """
        for node in [self._attempt.nodes[index] for index in sorted(self._failing)]:
            if not node.failing:
                self._failing.discard(node.index)
            elif self._others_suffice({node.index}):
                self._failing.discard(node.index)
                self._drain(node)

    def ask_to_move(self, move: Move) -> None:
        """Queue the request to move the ranks of one node to another, and record it as an event. It is carried out or
        refused when no other move is under way, which a later event records. A request for an unknown node is ignored.
        """
        if self._attempt.nodes.get(move.node) is not None:
            to = "a spare" if move.to is None else f"node {move.to}"
            text = f"the ranks of node {move.node} are to move to {to}"
            self._attempt.ledger.record("move_asked", text, node=move.node)
            self._moves.append(move)

    def receive(self, message: ToCoordinator) -> None:
        """Handle a heartbeat which reports that all ranks wait for one node's rank: record it once, and move that
        node's ranks if the spec asks for that. Ignore any other message.
        """
        attempt = self._attempt
        if not isinstance(message, Heartbeat) or attempt.phase is not AttemptPhase.RUNNING:
            return
        ranks = attempt.current.ranks if attempt.is_current(message.generation) else ()
        for slow in [news.slow for news in message.ranks if news.slow is not None]:
            node = attempt.nodes[ranks[slow.rank].node] if slow.rank < len(ranks) else None
            if node is None or node.slow:
                continue
            node.slow = (
                f"rank {slow.rank} on {node} is slow: its own work takes {slow.own_s:.3g} s of each step, the usual "
                f"rank's {slow.usual_s:.3g} s, and all others wait for it"
            )
            attempt.ledger.record("straggler", node.slow, node=node.index, rank=slow.rank)
            if attempt.rules.replace_stragglers:
                self._replace(node)

    def _replace(self, node: KnownNode) -> None:
        """Request a move of a slow node's ranks to a spare that was never slow; if none is ready, record that they wait
        for one.

        For the coordinator's node it is requested in any case, because `check` refuses such a move, with the reason as
        an event.
        """
        quick, usable = self._quick_spare(), self._attempt.nodes.usable
        if quick is not None or node.index == self._attempt.plan.nodes[0].index:
            self._moves.append(Move(node.index, quick))
            return
        self._await_spare.add(node.index)
        why = "each spare that is ready was slow itself" if usable else "no spare is ready"
        self._refuse(node.index, f"{why}; they do once another one is")

    def _quick_spare(self) -> int | None:
        """Return the lowest index of a node without ranks on which some can be started now (`KnownNode.usable`), and
        which is not recorded as slow; return None if there is none.
        """
        nodes = self._attempt.nodes
        return min((index for index in nodes.usable if not nodes[index].slow), default=None)

    def _replace_who_waited(self) -> None:
        """Request a move of the ranks of the first node, by index, that waits for a spare and is still slow, if a spare
        that is not recorded as slow is ready now; the move is to that spare. Nodes before it that are not slow any
        more, or have no ranks, stop waiting.
        """
        while self._await_spare and (quick := self._quick_spare()) is not None:
            node = self._attempt.nodes[min(self._await_spare)]
            self._await_spare.discard(node.index)
            if node.slow and node.index in self._attempt.current.members:
                self._moves.append(Move(node.index, quick))
                return

    def check(self) -> None:
        """Begin a drain or move that is due, if the present generation runs without a failure; called after each event.

        A drain waits until enough other nodes remain; but if the host of the node is about to be taken away and too few
        others have come by then, all ranks save and the run waits for nodes. A move is refused, by an event in the
        run's history, if it is of the coordinator's node or of one without ranks, if no spare is ready, or if too few
        nodes would be left.
        """
        attempt = self._attempt
        if attempt.phase is not AttemptPhase.RUNNING or attempt.leaving or attempt.current.failures:
            return
        if self._moving is not None:
            self._settle(self._moving)
        self._drain_failing()
        members = attempt.current.members if attempt.nodes.to_leave else ()
        drained = [
            node
            for node in map(attempt.nodes.__getitem__, members)
            if node.drained or (node.leaves and not self._coordinates(node))
        ]
        urgent = [node for node in drained if node.leaves]
        why = f"{' and '.join(map(str, drained))} is {'about to go' if urgent else 'drained'}"
        if drained and self._free(drained, why):
            return
        if urgent and self._is_time(urgent):
            # With too few nodes left the ranks save all the same, while the host is there, and the run waits.
            self._closer.close(Verdict(Cause.PREEMPTED, why, node=urgent[0].index, planned=True), saves=True)
            return
        if not self._moves:
            self._replace_who_waited()
        while self._moves:
            move = self._moves.popleft()
            if not (why := self._obstacle(move)) and self._begin(move):
                return
            self._refuse(move.node, why or "too few nodes would be left")

    def _free(self, nodes: Sequence[KnownNode], why: str) -> bool:
        """Stop the ranks of `nodes`, for the reason `why`, so that other nodes take their places while all other ranks
        stay in their processes; return True.

        If the other ranks cannot stay in their processes, or would have to repeat steps, or one of `nodes` cannot be
        reached, have all ranks of the run save and exit, to be started anew without `nodes`, and return True as well.
        If too few other nodes remain for that, stop nothing and return False.
        """
        found, indexes = (
            Verdict(Cause.PREEMPTED, why, node=nodes[0].index, planned=True),
            {node.index for node in nodes},
        )
        obstacle = self._in_place.obstacle_without(indexes)
        if obstacle == "" and any(rank.goes_back for rank in self._attempt.current.ranks):
            obstacle = "ranks would go back to what was saved before"
        if obstacle == "" and all(node.is_reachable for node in nodes):
            self._closer.free(nodes, found)
        elif self._others_suffice(indexes):
            self._attempt.warm_because = obstacle or ""
            self._closer.close(found, saves=True)
        else:
            return False
        return True

    def _is_time(self, leaving: Sequence[KnownNode]) -> bool:
        """Return whether ranks must save now, because the hosts of `leaving` are about to be taken away: the latest
        time for saving (`leaves_by`) has come for one of them, or there is no other node that may join before.
        """
        nodes, members = self._attempt.nodes, {*self._attempt.current.members}
        may_come = (nodes.hopeful | nodes.absent | nodes.returning(self._attempt.mono).keys()) - members
        may_come = {index for index in may_come if not nodes[index].leaves}
        return not may_come or self._attempt.mono >= min(node.leaves_by for node in leaving)

    def _others_suffice(self, leave: set[int]) -> bool:
        """Return whether enough nodes stay if those in `leave` do not: the other members and the spares must be as many
        as the plan needs, and include so many voters that the voters outside cannot elect another leader.
        """
        nodes, plan = self._attempt.nodes, self._attempt.plan
        stay = {index for index in self._attempt.current.members if index not in leave}
        left = stay | (nodes.usable - leave)
        return len(left) >= plan.nodes_min and nodes.quorum_shortfall(left, nodes.only_voting) is None

    def _obstacle(self, move: Move) -> str:
        """Return why the ranks of the node `move.node` cannot be moved now to the spare `move.to` (None: to any spare):
        the node is the coordinator's or has no ranks, or the spare is not ready. Return "" if they can be moved.
        """
        nodes, members = self._attempt.nodes, self._attempt.current.members
        if move.node == self._attempt.plan.nodes[0].index:
            return "it coordinates the others"
        if move.node not in members:
            return "it has no ranks"
        if move.to is not None and move.to not in nodes.usable:
            return f"node {move.to} is no spare that is ready"
        return "" if nodes.usable else "no spare is ready"

    def _begin(self, move: Move) -> bool:
        """Begin to move the ranks of the node `move.node` to `move.to`, or to any spare if that is None.

        If the other ranks cannot stay in their processes meanwhile, or would have to repeat steps, all ranks save, exit
        and are started anew. Return False and move nothing if too few nodes would remain for that without this one.
        """
        node, to = self._attempt.nodes[move.node], move.to
        node.moves = True
        if to is not None:
            self._attempt.nodes[to].wanted = True
        target = "a spare" if to is None else str(self._attempt.nodes[to])
        why = f": {node.slow}" if node.slow else ""
        self._moving = node if self._free([node], f"the ranks of {node} move to {target}{why}") else None
        if self._moving is None:
            self._forget()
        return self._moving is not None

    def _settle(self, node: KnownNode) -> None:
        """Record the end of the move of the ranks of `node` as an event: they run on other nodes now, or, if `node` is
        a member of the new generation too, they do not move. It is called once the ranks of that generation run.
        """
        self._forget()
        members = self._attempt.current.members
        if node.index in members:
            self._refuse(node.index, "no spare was ready any more")
            return
        there = ", ".join(map(str, members))
        text = f"the ranks of node {node.index} have moved; ranks run on node {there}"
        self._attempt.ledger.record(MOVED, text, node=node.index)

    def _forget(self) -> None:
        """Forget the move that was under way, as it is done or refused, and clear its marks on nodes: from which one
        and to which one ranks move.
        """
        self._moving = None
        for node in self._attempt.nodes:
            node.moves = node.wanted = False

    def _refuse(self, index: int, why: str) -> None:
        """Record that the ranks of node `index` do not move, and why."""
        self._attempt.ledger.record(NOT_MOVED, f"the ranks of node {index} do not move: {why}", node=index)
