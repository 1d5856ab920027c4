"""Watch the open generation, the set of ranks that train together now: handle what its nodes report, and act on what is
overdue. Its members are the nodes with those ranks. An agent is the launcher's process on a node.
"""

from collections.abc import Sequence
from math import inf
from typing import assert_never

from launcher.clock import heartbeat_every_s, lease_of_ranks
from launcher.coordinator import verdict
from launcher.coordinator.attempt import Attempt, AttemptPhase
from launcher.coordinator.classify import fenced, is_by_itself
from launcher.coordinator.closing import Aftermath, Closer
from launcher.coordinator.in_place.continuing import HotOpener
from launcher.coordinator.inquiry import Inquiry
from launcher.coordinator.nodes import KnownNode
from launcher.coordinator.opening import START_S
from launcher.coordinator.stragglers import Stragglers
from launcher.coordinator.verdict import Verdict
from launcher.errors import Exit
from launcher.plan.model import Plan
from launcher.run.records import KEPT, NODE_UNFIT
from launcher.states import Cause, State
from launcher.wire import messages

BLAME_S = 1.0  # how long a failure waits for its reason: which peer was lost, or that the run is to stop
_FRESH_S, _FRESH_HEARTBEATS = 3.0, 2  # no rank is called hung while a node has been silent for longer than these
_LOOK_S = 0.5

RankMessage = (
    messages.Leads
    | messages.Started
    | messages.Heartbeat
    | messages.Exited
    | messages.Stopped
    | messages.Looked
    | messages.Entered
)
CheckpointMessage = messages.NotFetched | messages.NothingWhole | messages.Copied | messages.Settled | messages.Noted


class Watch:
    """The part of the coordinator that handles messages about the open generation's ranks and checkpoints, and acts
    when one of its deadlines passes, such as the job's time limit or the time within which all ranks must have started.
    """

    def __init__(self, attempt: Attempt, closer: Closer, aftermath: Aftermath, in_place: HotOpener) -> None:
        self._attempt = attempt
        self._closer = closer
        self._in_place = in_place
        self._aftermath = aftermath
        self._look_for_hang_at = 0.0
        self._inquiry = Inquiry(attempt, closer)
        self._stragglers = Stragglers(attempt)

    def handle_ranks(self, node: KnownNode, message: RankMessage) -> None:
        """Handle a message of a node about its ranks: that they have started, ended or stopped, a heartbeat, or an
        answer on what they are doing.
        """
        match message:
            case messages.Leads():
                self._led(message)
            case messages.Started():
                self._started(node, message)
            case messages.Heartbeat():
                self._heartbeat(message)
            case messages.Exited():
                if self._attempt.is_current(message.exit.generation) and message.exit.node == message.node:
                    self._rank_ended(message)
            case messages.Stopped():
                self._stopped(node, message)
            case messages.Looked():
                self._inquiry.receive(message)
            case messages.Entered():
                self._stragglers.receive(message)
            case _:
                assert_never(message)

    def handle_checkpoints(self, message: CheckpointMessage) -> None:
        """Handle what agents report about checkpoint files, which they do if nodes share no disk or copies are kept.

        Track how far nodes have copied theirs, record the events that agents send (Noted), and close the starting
        generation if its nodes lack a complete checkpoint or cannot fetch it.
        """
        attempt = self._attempt
        match message:
            case messages.Noted():
                attempt.ledger.record(message.kind, message.text, node=message.node)
            case messages.Copied() if attempt.is_current(message.generation):
                attempt.current.copy(message.node, message.step)
            case messages.Settled() if attempt.is_current(message.generation):
                attempt.current.settle(message.node, message.problem)
                if attempt.phase is AttemptPhase.COPYING:
                    self._finished()
            case messages.NothingWhole() if attempt.is_current(message.generation) and (
                attempt.phase is AttemptPhase.STARTING
            ):
                self._closer.close(Verdict(Cause.NO_CHECKPOINT, message.text))
            case messages.NotFetched() if attempt.is_current(message.generation) and (
                attempt.phase is AttemptPhase.STARTING
            ):
                text = f"node {message.node} could not fetch its checkpoint: {message.text}"
                # The next generation looks again.
                self._closer.close(Verdict(Cause.COMMUNICATION, text, node=message.node))

    # -- starting

    def _led(self, message: messages.Leads) -> None:
        """Handle the report of the first member that rank 0 has been forked: send the other members, which wait for
        this, the message to start their ranks. Ignore a repeated report, and one about another generation.
        """
        attempt = self._attempt
        starting = attempt.phase is AttemptPhase.STARTING and attempt.is_current(message.generation)
        if not starting or attempt.current.led:
            return
        attempt.current.led = True
        for index in attempt.current.members:
            if index != message.node and attempt.nodes[index].is_reachable:
                attempt.ledger.send(index, messages.Follow(message.generation))

    def _started(self, node: KnownNode, message: messages.Started) -> None:
        """Record the port that the node's agent now holds for a later generation. If the message is about the open
        generation, record also that the node's ranks have started.
        """
        attempt = self._attempt
        node.port = message.port
        if attempt.is_current(message.generation) and node.index in attempt.current.starting:
            attempt.current.start(node.index, message.pids)
            self._all_started()

    def _all_started(self) -> None:
        """Mark the generation as running if every member has started its ranks; then handle a lost node or a failed
        rank of which the coordinator learnt while ranks were starting.
        """
        attempt = self._attempt
        if attempt.phase is AttemptPhase.STARTING and not attempt.current.starting:
            attempt.phase = AttemptPhase.RUNNING
            attempt.standing.state, attempt.standing.message = State.RUNNING, ""
            attempt.awaited = None
            waits = self._may_be_stopping and attempt.blame_at < inf
            failed = attempt.lost or (attempt.current.failures and not waits)
            if failed and not self._in_place.continue_in_place():
                self._closer.close(attempt.lost)

    # -- running

    def lost(self, found: Verdict) -> None:
        """Handle the loss of a member of the generation, for the cause in `found`: let the other ranks continue in
        their processes if the recovery mode and their state permit it, else close the generation, that is end them all.
        """
        attempt = self._attempt
        attempt.lost = found
        attempt.leaving -= attempt.current.lost
        self._continue_without()

    def _continue_without(self) -> None:
        """Continue in place without the node that the caller has just removed from the generation; close the generation
        if that is impossible.
        """
        if self._in_place.continue_in_place():
            self._all_started()  # the one that is gone was the last that they waited for
        else:
            self._closer.close(self._attempt.lost)

    def leave_out(self, node: KnownNode, evidence: str) -> None:
        """Exclude a node whose devices are faulty or whose links are slow, as `evidence` says. End its ranks, or those
        of the whole generation if the other ranks cannot continue in place without them.
        """
        attempt = self._attempt
        if node.unfit:
            return  # it is sent again after a network cut
        node.fault, node.unfit = evidence, True
        attempt.nodes.settle(node)
        text = f"{node} is left out: {evidence}"
        attempt.ledger.record(NODE_UNFIT, text, node=node.index, cause=Cause.NODE_LOST, evidence=evidence)
        holds = attempt.is_open and node.holds == attempt.current.number and node.stale_agent is None
        if not holds or node.index in attempt.leaving:
            return  # it has no ranks of the generation, or they are being ended already
        found = Verdict(Cause.NODE_LOST, f"{node} is unfit: {evidence}", node=node.index, evidence=evidence)
        if self._in_place.can_without(node):
            self._closer.free([node], found)
        else:
            self._closer.close(found)

    def _heartbeat(self, heartbeat: messages.Heartbeat) -> None:
        """Record a node's heartbeat: what it uses, its ranks' progress, and how much of a checkpoint it has fetched.
        From a heartbeat of another generation than the present one, record only what the node uses.

        If ranks of the node have reported nothing for so long that they may hang (`Generation.stalls`), check whether
        they do.
        """
        attempt = self._attempt
        if heartbeat.load is not None:
            attempt.nodes[heartbeat.node].load = heartbeat.load
        if not attempt.is_current(heartbeat.generation):
            return
        generation, starting = attempt.current, attempt.phase is AttemptPhase.STARTING
        if heartbeat.keeps and not attempt.kept:
            attempt.kept, attempt.may_begin_anew = True, False
            attempt.ledger.record(
                KEPT, "the run has a checkpoint: it does not begin anew by itself", node=heartbeat.node
            )
        self._update_progress(generation.receive(heartbeat, attempt.mono))
        if heartbeat.fetched is not None and starting and generation.fetch(heartbeat.node, heartbeat.fetched):
            attempt.start_by = attempt.mono + START_S
            megabytes = generation.fetched_bytes / 1e6
            text = f"generation {generation.number} fetches its checkpoint, {megabytes:.0f} MB so far"
            attempt.standing.message = text
        if heartbeat.node in generation.returned:
            self._catch_up(heartbeat)
        if attempt.phase is AttemptPhase.RUNNING and generation.stalls(heartbeat.node):
            self._check_hang()

    def _update_progress(self, news: Sequence[messages.RankHeartbeat]) -> None:
        """Update the run's progress from `news`, what a node's heartbeat reports on ranks of the open generation.
        Record an event at the generation's first step and at a return to an earlier step.
        """
        attempt, moved = self._attempt, self._attempt.pace.moves
        attempt.pace.receive(news, attempt.mono)
        if attempt.is_open and attempt.pace.moves and not moved:
            text = f"generation {attempt.current.number} trains: step {attempt.pace.step} is done"
            attempt.ledger.record("training", text)
        went_back = next((one.went_back for one in news if one.went_back is not None), None)
        if went_back is not None:
            self._record_rollback(went_back)

    def _record_rollback(self, told: messages.WentBack) -> None:
        """Record, once per generation, to which step ranks went back, and show that in the run's status until the lost
        steps are done again.
        """
        attempt, generation = self._attempt, self._attempt.current
        if not generation.went_back:
            generation.went_back = f"{told.why}; " if told.why else ""
            generation.went_back += f"back to step {told.step} in place, {_steps(told.lost_steps)} done again"
            attempt.ledger.record("went_back", generation.went_back)
        if (attempt.pace.step or 0) < told.step + told.lost_steps:
            attempt.standing.message = generation.went_back
        elif attempt.standing.message == generation.went_back:
            attempt.standing.message = ""

    def _catch_up(self, heartbeat: messages.Heartbeat) -> None:
        """Handle starts and exits of a node's ranks whose messages were lost in a network cut, judging by the ranks in
        its heartbeat: if there are any, all of its ranks have started. After a cut, a rank that has started and is
        missing in the heartbeat has ended.
        """
        generation = self._attempt.current
        if heartbeat.ranks and heartbeat.node in generation.starting:
            generation.start(heartbeat.node, ())
            self._all_started()
        if heartbeat.node in generation.starting:
            return
        for rank in generation.unaccounted(heartbeat):
            self._rank_ended(messages.Exited(heartbeat.node, verdict.unseen_end(generation, rank)))

    def _check_hang(self) -> None:
        """Have all ranks inspected a last time and the generation then closed as hung (`Inquiry.end`), if ranks were
        silent for longer than the spec allows (`recovery.hang_after`) and the heartbeats of all nodes are fresh.
        """
        attempt, mono = self._attempt, self._attempt.mono
        if mono < self._look_for_hang_at:
            return
        self._look_for_hang_at = mono + _LOOK_S
        if not all(self._is_fresh(attempt.nodes[index]) for index in attempt.current.members):
            return  # a silent node may be the reason; its lease will show
        if attempt.current.suspects(mono):
            self._inquiry.end()

    def _is_fresh(self, node: KnownNode) -> bool:
        """Return whether the node is reachable and its last message is at most `fresh_s(plan)` seconds old: three
        seconds or two heartbeats, whichever is longer. Otherwise its reports on ranks may be out of date.
        """
        return node.is_reachable and node.heard_at >= self._attempt.mono - fresh_s(self._attempt.plan)

    # -- ending

    def _rank_ended(self, message: messages.Exited) -> None:
        """Record a rank's end. Finish the run if all ranks have finished, and close the generation if the rank found
        that a newer start of the run took over.

        After a failure continue in place, or close the generation if that is impossible. If the failure may be the
        result of another one, or of a stop of the whole job, first wait a short time for a report of that.
        """
        attempt, generation, end = self._attempt, self._attempt.current, message.exit
        if not generation.end(end, message.tail):
            return
        attempt.ledger.record_exit(end)
        if fenced(end):
            text = f"fenced: rank {end.rank} on node {end.node} found that a newer start of this run took over"
            attempt.fenced = text
        if not attempt.is_open or end.node in attempt.leaving:
            return
        if generation.finished:
            self._finished()
        elif fenced(end):
            self._closer.close()
        elif generation.failures and (self._may_be_stopping or (generation.live and not is_by_itself(end))):
            attempt.blame_at = min(attempt.blame_at, attempt.mono + BLAME_S)
        elif generation.failures and not self._in_place.continue_in_place():
            self._closer.close()

    @property
    def _may_be_stopping(self) -> bool:
        """Return whether ranks failed as they do when the cluster stops the whole job: by a signal such as SIGTERM, or
        with an exit code that stands for one, except those that only lost their connection to another rank. An agent
        may be about to report that stop.
        """
        attempt = self._attempt
        return not (attempt.leaving or attempt.lost) and attempt.current.may_be_stopped

    def _act_on_unexplained_failure(self) -> None:
        """Close the generation after a failure that no agent has explained within the time limit; its cause is then the
        one found so far, by the ranks' exits or by a lost node.

        If ranks failed as they do when the cluster stops the whole job, but no stop was reported, continue in place
        instead if that is possible.
        """
        attempt, killed = self._attempt, self._may_be_stopping
        attempt.blame_at = inf
        if not (killed and self._in_place.continue_in_place()):
            self._closer.close(attempt.lost)

    def _finished(self) -> None:
        """End the run with success after all ranks have finished. If its plan has the last checkpoint copied first, to
        another node's disk or to `checkpoint.copy_to`, and copies are still missing, only note that the run waits for
        them; this is called again when an agent reports that it has finished copying.
        """
        attempt, done = self._attempt, "all ranks have finished"
        if not attempt.plan.copies_last or attempt.current.settled:
            alone = "".join(f"; {problem}" for problem in attempt.current.uncopied)
            self._aftermath.finish(State.SUCCEEDED, None, Exit.OK, done + alone)
        elif attempt.phase is not AttemptPhase.COPYING:
            attempt.phase = AttemptPhase.COPYING
            attempt.standing.state = State.RUNNING
            attempt.standing.message = f"{done}; their last checkpoint gets its copies"

    def _stopped(self, node: KnownNode, message: messages.Stopped) -> None:
        """Record that a node has ended its ranks. If it was not ordered to, close the generation as a launcher's fault;
        if it was to leave the generation, continue without it. Ignore a message about the ranks of an earlier
        generation than those that the node has, or of a node whose previous agent may still run.
        """
        attempt = self._attempt
        if node.stale_agent is not None or message.generation < node.holds:
            return
        if attempt.is_open and node.index in attempt.leaving:
            node.holds = 0
            attempt.nodes.settle(node)
            attempt.leaving.discard(node.index)
            attempt.current.lose(node.index)
            self._continue_without()
            return
        if attempt.is_open and node.holds == attempt.current.number:
            text = f"node {node.index} ended its ranks without having been asked to"
            self._closer.close(Verdict(Cause.LAUNCHER_FAULT, text, node=node.index))
        node.holds = 0
        if attempt.closing is not None:
            attempt.closing.waits.discard(node.index)

    # -- time passes

    def next_check(self) -> float:
        """Return the time, by the coordinator's monotonic clock, at which a rank that a signal such as SIGSTOP has
        stopped is to be inspected; infinity if no rank is stopped, or if all are, as then none waits for another.
        """
        return self._inquiry.next_check()

    def check(self) -> None:
        """Act on the first of these that is so: the job's time limit is reached; no agent has explained a failure in
        time; so few voters are reachable that the others may elect another leader; or ranks have not started in time.
        The first makes all ranks save and exit; any other closes the generation, if ranks cannot continue without that.

        If none is so and all ranks run, ask them what they do when it is time for that: after a long silence for a
        hang, and at intervals for the rank that the others wait for.
        """
        attempt = self._attempt
        if attempt.mono >= attempt.limit_at:
            self._closer.close_gracefully(verdict.of_limit(attempt.plan), "the time limit is reached")
        elif attempt.mono >= attempt.blame_at:
            self._act_on_unexplained_failure()
        elif (heard := attempt.outvoted()) is not None:
            text = f"{heard[0]} of the {heard[1]} voters are reachable: the others may elect another leader"
            self._closer.close(Verdict(Cause.NODE_LOST, text))
        elif attempt.phase is AttemptPhase.STARTING and attempt.mono >= attempt.start_by:
            self._start_timed_out()
        elif attempt.phase is AttemptPhase.RUNNING:
            self._inquiry.check()
            self._stragglers.check()

    def _start_timed_out(self) -> None:
        """Exclude the reachable nodes that started no rank within the time limit, and close the generation.

        If all nodes that are still awaited are out of reach, only set the limit anew: their leases decide.
        """
        attempt, generation = self._attempt, self._attempt.current
        waited_for = sorted(generation.starting) if generation.led else generation.members[:1]
        late = [node for node in map(attempt.nodes.__getitem__, waited_for) if node.is_reachable]
        attempt.start_by = attempt.mono + START_S
        if not late:
            return  # unknown ones have a lease that ends
        for node in late:
            self._closer.exclude(node, f"no rank was started within {START_S:g} s")
        text = f"node {late[0].index} started no rank within {START_S:g} s"
        self._closer.close(Verdict(Cause.LAUNCHER_FAULT, text, node=late[0].index))


def fresh_s(plan: Plan) -> float:
    """Return for how many seconds after a node's last heartbeat what it reported of its ranks counts as fresh.

    A rank is not reported as hung after that, because it may be its node that is silent.
    """
    every_s = heartbeat_every_s(lease_of_ranks(plan.spec.recovery.lease_s), len(plan.nodes))
    return max(_FRESH_S, _FRESH_HEARTBEATS * every_s)


def _steps(count: int) -> str:
    """Return a count with its noun and verb: `1 step is` or `5 steps are`."""
    return "1 step is" if count == 1 else f"{count} steps are"
