"""Close a generation (one set of ranks that train together): end all its processes, then let the recovery policy choose
what follows. Its members are the nodes with its ranks. An attempt is one batch job, or one start on a pool's hosts.
"""

from collections.abc import Collection
from math import inf

from launcher.coordinator import verdict
from launcher.coordinator.attempt import Attempt, AttemptPhase, Awaited, Closing
from launcher.coordinator.gathering import Gathering
from launcher.coordinator.generation import Rank
from launcher.coordinator.nodes import KnownNode, Presence
from launcher.coordinator.policy import Decision, decide
from launcher.coordinator.verdict import Verdict
from launcher.errors import Exit
from launcher.run.records import AttemptEnd, Event
from launcher.states import Action, Cause, State, exit_of
from launcher.wire.messages import End, Stop

CLOSE_S = 30.0  # from Stop without grace to Stopped, for a node that reports all the while
AFTER_GRACE_S = 10.0  # beyond the grace
_MOST_IN_A_ROW = 4  # failures without a step in between after which survivors may continue in place


class Aftermath:
    """The part of the coordinator that carries out what the recovery policy chooses after a failure, and ends the
    attempt.
    """

    def __init__(self, attempt: Attempt) -> None:
        self._attempt = attempt

    def note_failure(self, found: Verdict) -> Event:
        """Record the failure `found` as an event, show it as the run's newest failure, and return the event."""
        event = self._draft_failure(found)
        self._note(event, found)
        return event

    def _draft_failure(self, found: Verdict, *, in_place: bool = False) -> Event:
        """Return the event that describes a failure, from the verdict `found` (cause, rank, node, text and so on),
        without recording it. `in_place` says that the surviving ranks continue in their processes after it.
        """
        return self._attempt.ledger.draft(
            "failure",
            found.text,
            node=found.node,
            rank=found.rank,
            cause=found.cause,
            where=found.where,
            left_out=found.left_out,
            signal=found.signal,
            code=found.code,
            said=found.said,
            error_kind=found.error_kind,
            brief=found.brief or found.text,
            evidence=found.evidence,
            in_place=in_place,
            same=found.same,
        )

    def _note(self, event: Event, found: Verdict) -> None:
        """Record `event`, the event for the failure `found`, and show it as the run's newest failure, with the log of
        the rank that failed.
        """
        attempt = self._attempt
        attempt.ledger.append(event)
        log, tail = found.log, tuple[str, ...]()
        if attempt.generation is not None and found.rank is not None:
            log, tail = attempt.generation.end_of_log(found.rank)
        attempt.standing.failure = verdict.failure_of(event, log, tail)

    def may_continue_in_place(self, found: Verdict, who: str) -> bool:
        """Return whether the policy lets the surviving ranks continue in place, and record the failure if so.

        `who` is a text that names survivors and replacements. A planned move is always allowed, and recorded as no
        failure. The policy's delay is skipped, because the survivors would be idle meanwhile. Up to `_MOST_IN_A_ROW`
        failures without a completed step in between are allowed, as when ranks are killed while they still connect.
        """
        attempt, follows = self._attempt, f"a new generation follows, hot: {who}"
        if found.planned:
            self._record_restart(f"{found.text}; {follows}", brief=found.text)
            return True
        if attempt.plan.restarts_all:
            return False
        event = self._draft_failure(found, in_place=True)
        if found.distrusted is not None:
            attempt.nodes[found.distrusted].suspected_at = attempt.mono
        decision = decide(event, attempt.history, attempt.rules, can_regroup=True)
        if decision.action is not Action.REGROUP or self._in_place_in_a_row(event) > _MOST_IN_A_ROW:
            return False
        self._note(event, found)
        attempt.history.append(event)
        self._count(found.cause)
        self._record_restart(f"{follows}: {decision.reason}", event, _briefly(decision, event))
        return True

    def _in_place_in_a_row(self, failure: Event) -> int:
        """Return the length, at least 1, of the series of failures that ends with `failure`.

        An earlier failure belongs to it if the run continued in place after it, in the processes that it had, and
        completed no step before the next failure.
        """
        count, event = 1, failure
        for before in reversed(self._attempt.history):
            if event.steps or not before.in_place:
                break
            count, event = count + 1, before
        return count

    def _record_restart(self, text: str, failure: Event | None = None, brief: str = "") -> None:
        """Record, as an event and in the run's status, that a new generation follows `failure` or, with None, a request
        of the user's such as to move ranks. The number of restarts is not changed here.

        `text` says why the generation follows, and `brief` says it in a few words, for logs.
        """
        cause, before = (failure.cause, f"{failure.text}; ") if failure is not None else (None, "")
        self._attempt.ledger.record("regroup", text, cause=cause, brief=brief)
        self._attempt.standing.state, self._attempt.standing.message = State.REGROUPING, f"{before}{text}"

    def _count(self, cause: Cause) -> None:
        """Count one more restart for `cause` in the run's status."""
        restarts = self._attempt.standing.restarts
        restarts[cause.value] = restarts.get(cause.value, 0) + 1

    def fail(self, found: Verdict, *, can_regroup: bool) -> None:
        """Record the failure `found`, then gather nodes for a new generation, requeue the run or end it, as the policy
        chooses.

        `can_regroup` says whether enough nodes are left for a new generation within this attempt.
        """
        attempt, warm = self._attempt, self._warm_because()
        if found.planned and can_regroup:
            self._record_restart(f"{found.text}; a new generation follows{warm}", brief=found.text)
            self._gather_anew()
            return
        event = self.note_failure(found)
        if found.cause in (Cause.DISK, Cause.LAUNCHER_FAULT) and found.node is not None:
            attempt.nodes[found.node].suspected_at = attempt.mono
        can_regroup = can_regroup and not attempt.plan.restarts_all
        decision = decide(event, attempt.history, attempt.rules, can_regroup=can_regroup)
        attempt.history.append(event)
        # A run that has used up the time limit of its spec ends, whatever its budgets.
        out_of_time = found.cause is Cause.TIME_LIMIT and attempt.mono >= attempt.limit_at
        if decision.action is Action.END or out_of_time:
            text = decision.reason if decision.action is Action.END else found.text
            self.finish(State.FAILED, decision.cause, exit_of(decision.cause), text)
            return
        self._count(found.cause)
        wait = f" in {decision.delay_s:g} s" if decision.delay_s else ""
        if decision.action is Action.REQUEUE:
            text = f"a new attempt follows{wait}: {decision.reason}"
            code = exit_of(decision.cause)
            self.finish(State.QUEUED, decision.cause, code, text, decision.delay_s, _briefly(decision, event))
        else:
            text = f"a new generation follows{wait}{warm}: {decision.reason}"
            self._record_restart(text, event, _briefly(decision, event))
            self._gather_anew(decision.delay_s)

    def _warm_because(self) -> str:
        """Return why this restart is warm: why all ranks are replaced although some could have stayed in their
        processes. It is the end of a sentence, `, warm because ...`, and is then forgotten. Return "" if there is no
        reason, or if `recovery.mode` is `auto`.
        """
        why, self._attempt.warm_because = self._attempt.warm_because, ""
        return f", warm because {why}" if why and self._attempt.rules.mode != "auto" else ""

    def _gather_anew(self, delay_s: float = 0.0) -> None:
        """Begin to wait for enough nodes for a new generation, which opens after `delay_s` at the earliest."""
        attempt = self._attempt
        attempt.gathering = Gathering(attempt.plan, attempt.nodes, attempt.mono, attempt.mono + delay_s, first=False)

    def await_nodes(self, found: Verdict) -> None:
        """Wait for absent nodes that may have a complete checkpoint. `found` is the verdict that no present node has
        one.

        End the attempt instead if no node is absent, out of reach or recently lost, or if the wait, counted from its
        first call, has lasted for `recovery.gone_after`.
        """
        attempt = self._attempt
        until = attempt.awaited.until if attempt.awaited else attempt.mono + attempt.rules.gone_after_s
        attempt.awaited = Awaited(found, attempt.nodes.connected, until)
        away = attempt.nodes.away(since=attempt.mono - attempt.rules.gone_after_s)
        if not away or attempt.mono >= until:
            self.end_without_checkpoint(attempt.awaited)
            return
        names = ", ".join(map(str, away))
        wait_s = until - attempt.mono
        text = f"{found.text}; the run waits for {names}, for {wait_s:.0f} s at most (recovery.gone_after)"
        attempt.ledger.record("checkpoint_awaited", text)
        attempt.standing.state, attempt.standing.message = State.REGROUPING, text
        self._gather_anew()

    def end_without_checkpoint(self, awaited: Awaited) -> None:
        """Fail the run with a hint for the user, because the awaited nodes with its checkpoint have not come.

        A run that has a checkpoint never starts from nothing by itself.
        """
        found, away = awaited.verdict, self._attempt.nodes.away()
        self.note_failure(found)
        run, names = self._attempt.plan.run_id, ", ".join(map(str, away)) or "the hosts that it was on"
        text = (
            f"{found.text}; bring back {names}, then `launch resume {run}`. Of a host that is gone for good say "
            f"`launch cancel {run} --gone HOST` before; `launch resume {run} --anew` begins from nothing if it has to"
        )
        self.finish(State.FAILED, found.cause, exit_of(found.cause), text)

    def end_fenced(self) -> None:
        """End the attempt because a newer attempt owns the checkpoints; this is no failure and uses up no budget."""
        self.finish(State.FAILED, None, Exit.FENCED, self._attempt.fenced)

    def end_to_restart(self) -> None:
        """End the attempt because all hosts or roles are to start again together, as was requested: the run's
        supervisor starts the next attempt. This is no failure and counts as no restart.
        """
        self.finish(State.QUEUED, None, Exit.OK, f"a new attempt follows: {verdict.STOPS[verdict.RESTART]}")

    def end_cancelled(self) -> None:
        """End the attempt as cancelled by the user."""
        self.finish(State.CANCELLED, Cause.CANCELLED, Exit.CANCELLED, "cancelled")

    def finish(
        self, state: State, cause: Cause | None, code: Exit, text: str, delay_s: float = 0.0, brief: str = ""
    ) -> None:
        """End the attempt in `state`: send `End` to every connected agent, and record the end with the message `text`.

        `cause` is why the attempt has failed, or None. `code` is the exit code of the coordinator's process. `delay_s`
        is the delay before the next attempt, if one follows; `brief` is a shorter form of `text`.
        """
        attempt, ledger = self._attempt, self._attempt.ledger
        attempt.phase = AttemptPhase.OVER
        attempt.standing.end = AttemptEnd(state, cause, int(code), ledger.now.wall, text, delay_s)
        for node in attempt.nodes:
            if node.link is Presence.UP:
                ledger.send(node.index, End(text, goes_on=state is State.QUEUED))
        ledger.finish(attempt.standing.end, brief)


def _briefly(decision: Decision, failure: Event) -> str:
    """Return a short form of the decision and the failure, such as `restart 1 of 3: KeyError in train.py:3, rank 1`."""
    return f"{decision.reason.partition(' for ')[0]}: {failure.brief}"


class Closer:
    """The part of the coordinator that ends the ranks of a generation, and then hands the reason to `Aftermath`, which
    lets the policy choose what follows.
    """

    def __init__(self, attempt: Attempt, aftermath: Aftermath) -> None:
        self._attempt = attempt
        self._aftermath = aftermath

    def close(
        self,
        found: Verdict | None = None,
        *,
        graceful: bool = False,
        saves: bool = False,
        hung: Collection[Rank] = (),
    ) -> None:
        """Stop every rank of the generation and begin to wait until all have ended.

        `found` says why; with None the exits of the ranks do. With `graceful`, the attempt ends too and ranks have time
        to save; with `saves`, they have time to save and a new generation follows; else they are killed at once. Ranks
        in `hung` write their stacks to their logs first.
        """
        attempt = self._attempt
        generation = attempt.current
        grace_s = attempt.rules.grace_s if graceful or saves else 0.0
        gives_up_at = attempt.mono + (grace_s + AFTER_GRACE_S if graceful or saves else CLOSE_S)
        holders = [attempt.nodes[index] for index in generation.members]
        holders = [node for node in holders if node.holds == generation.number and node.link is not Presence.LOST]
        attempt.phase = AttemptPhase.CLOSING
        attempt.closing = Closing(found, graceful, grace_s, {node.index for node in holders}, gives_up_at)
        attempt.start_by = attempt.blame_at = inf
        attempt.leaving.clear()
        dumps: dict[int, list[int]] = {}
        for rank in hung:
            dumps.setdefault(rank.node, []).append(rank.number)
        for node in holders:
            if node.is_reachable:
                dump = tuple(sorted(dumps.get(node.index, ())))
                attempt.ledger.send(node.index, Stop(generation.number, grace_s, dump))
        if not graceful:
            attempt.standing.state = State.REGROUPING
            why = found or verdict.of_exits(generation, False)
            attempt.standing.message = attempt.fenced or why.text

    def close_gracefully(self, found: Verdict, text: str) -> None:
        """Close the last generation of the attempt for the reason in `found`, and give its ranks the spec's `grace_s`
        seconds to save and exit. Until they have exited, the run's status shows `text`.
        """
        attempt = self._attempt
        self.close(found, graceful=True)
        stop = f"; ranks have {attempt.rules.grace_s:g} s to stop" if attempt.current.live else ""
        attempt.standing.message = text + stop

    def free(self, nodes: Collection[KnownNode], found: Verdict) -> None:
        """End the ranks of the nodes in `nodes` only, for the reason `found`, so that no rank runs twice when other
        nodes take them over.

        Once these nodes have answered `Stopped`, the coordinator chooses how the other members continue.
        """
        attempt = self._attempt
        attempt.leaving |= {node.index for node in nodes}
        attempt.lost, attempt.blame_at = found, attempt.mono + CLOSE_S
        attempt.standing.message = found.text
        for node in nodes:
            attempt.ledger.send(node.index, Stop(attempt.current.number, 0.0))

    def exclude(self, node: KnownNode, why: str) -> None:
        """Mark a node as faulty, so that it gets no more ranks, and record the reason `why` as an event. Ranks that it
        has are not ended.
        """
        node.fault = why
        text = f"node {node.index} is not used any more: {why}"
        self._attempt.ledger.record("agent_fault", text, node=node.index, cause=Cause.LAUNCHER_FAULT)
        self._attempt.nodes.settle(node)

    def await_closed(self) -> None:
        """Complete the closing, if one is under way and no node's ranks are waited for any more; it returns at once.

        At the closing's time limit, exclude the connected nodes that have not stopped their ranks. Disconnected ones
        are waited for until they return or are lost, or, if the attempt ends, no longer.
        """
        attempt, closing = self._attempt, self._attempt.closing
        if closing is None:
            return
        if closing.waits and attempt.mono >= closing.gives_up_at:
            closing.gives_up_at = attempt.mono + CLOSE_S
            for node in [attempt.nodes[index] for index in sorted(closing.waits)]:
                if node.is_reachable:
                    self.exclude(node, "it did not end its ranks in time")
                    closing.waits.discard(node.index)
            if closing.graceful:
                closing.waits.clear()  # the attempt ends: remaining agents get End, or their leases run out
        if not closing.waits:
            self._closed(closing)

    def _closed(self, closing: Closing) -> None:
        """Continue after the generation is closed: end with success, carry out the requested stop, or do what the
        recovery policy chooses.
        """
        attempt, aftermath = self._attempt, self._aftermath
        attempt.phase, attempt.closing = AttemptPhase.WAITING, None
        asked_to_leave = attempt.stop in ("cancel", verdict.RESTART)
        if (closing.graceful or closing.grace_s) and not asked_to_leave and attempt.current.finished:
            aftermath.finish(State.SUCCEEDED, None, Exit.OK, "all ranks have finished")
            return
        found = closing.verdict or verdict.of_exits(attempt.current, attempt.stop is not None)
        if attempt.stop == "cancel":
            if not closing.graceful and not found.planned:
                aftermath.note_failure(found)
            aftermath.end_cancelled()
        elif attempt.fenced:
            aftermath.end_fenced()
        elif attempt.stop == verdict.RESTART and closing.graceful:
            aftermath.end_to_restart()
        elif found.cause is Cause.NO_CHECKPOINT and not closing.graceful and attempt.stop is None:
            aftermath.await_nodes(found)
        else:
            goes_on = not closing.graceful and attempt.stop is None
            aftermath.fail(found, can_regroup=goes_on and self._can_regroup())

    def _can_regroup(self) -> bool:
        """Return whether enough nodes for another generation are usable or can become usable: the coordinator's own
        node, as many as the plan needs, and in a pool so many voters that the others cannot elect another leader.
        """
        attempt, mono = self._attempt, self._attempt.mono
        return Gathering(attempt.plan, attempt.nodes, mono, mono, first=False).may_succeed(mono)
