"""Describe why a generation is closed or cannot be opened, for the user and for the recovery policy. A generation is
one set of ranks that train together. A Verdict is that reason: its cause, the rank and node, and a sentence for the
user.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from msgspec.structs import replace

from launcher.coordinator.classify import brief, classify, culprit, describe, error_kind, evidence, foretells_stop
from launcher.coordinator.generation import Generation, Rank
from launcher.coordinator.tracebacks import stuck_at
from launcher.plan.model import Plan
from launcher.run.hangs import HangKind, HangVerdict
from launcher.run.records import Event, Failure, RankExit
from launcher.states import Cause, ErrorKind

_NAMED = 8
_LONGEST_NAME = 500
RESTART = "restart"  # a reason to stop: the attempt is followed by another one, which counts as no restart
STOPS = {
    "cancel": "the run was cancelled",
    "preempt": "the cluster takes the nodes back",
    "limit": "the time limit of the cluster's job is near",
    "notice": "the host that coordinates the others is about to go",
    RESTART: "the run's hosts or roles start again together",
}


@dataclass(frozen=True, slots=True)
class Verdict:
    """Why a generation is closed or cannot be opened: the cause, a sentence for the user, and what it was
    derived from.
    """

    cause: Cause
    text: str  # one line
    rank: int | None = None  # that failed first, or for which the others wait
    node: int | None = None  # of that rank, or that is at fault itself
    where: str | None = None  # the frame of user code that failed or hangs
    evidence: str = ""  # the observations that show it, such as the stacks of ranks or a node's fault
    log: str | None = None  # the path of the rank's log
    signal: int | None = None  # that ended the rank
    code: int | None = None  # the rank's exit code
    said: str = ""  # the last line of the rank's log if the rank ended without an exception
    error_kind: ErrorKind | None = None  # how the user's program failed, as a sign whether it may succeed again
    left_out: str = ""  # the missing file if the cause is a file that was not copied with the code
    brief: str = ""  # a shorter form of `text` for log and status; "": `text` is short enough
    same: str = ""  # a key that is equal for equal hangs which no restart can cure, else empty
    distrusted: int | None = None  # the node that may have caused a hang; other nodes are preferred to it
    planned: bool = False  # no failure: ranks are moved to other nodes; `cause` counts only if that is impossible


def of_exits(generation: Generation, preempting: bool) -> Verdict:
    """Return the verdict on the first rank that failed by itself: not because it was asked to stop, or because its
    connection to another rank failed. If there is no such rank, it is on the first that failed at all. If other ranks
    failed in the same way, the lowest of them is named; if a disk failed, the rank whose disk that was.

    With `preempting`, because the attempt is being stopped, the cause is a preemption if that rank ended by one of the
    signals that batch systems send before they stop a job, or exited with the code by which a program asks to be
    resumed.
    """
    end = culprit(generation.failures)
    cause = classify(end)
    if cause is Cause.DISK and end.failed_rank is not None and 0 <= end.failed_rank < len(generation.ranks):
        named = generation.ranks[end.failed_rank]  # all ranks raise what one rank's disk has caused
        log = named.exit.log if named.exit is not None else ""
        end = replace(end, rank=named.number, local_rank=named.local, node=named.node, log=log)
    if preempting and foretells_stop(end):
        cause = Cause.PREEMPTED  # the cluster's signal reached this rank before our own
    exited = end.error is None and end.code is not None
    return Verdict(
        cause,
        describe(end, cause),
        end.rank,
        end.node,
        end.where,
        evidence(end),
        end.log or None,
        end.signal,
        end.code,
        end.said[:_LONGEST_NAME] if exited else "",
        error_kind(end) if cause is Cause.USER_ERROR else None,
        end.left_out[:_LONGEST_NAME],
        brief(end, cause),
    )


def of_hang(generation: Generation, suspects: Sequence[Rank], mono: float, found: HangVerdict | None = None) -> Verdict:
    """Return the verdict on a hang. It names the first rank in `found`, the result of inspecting all ranks, or the
    first of `suspects`, the silent ranks (at least one), if `found` is None or names none.

    `mono` is the present by the coordinator's monotonic clock, for the text on how long that rank has been silent.
    """
    if found is not None and found.kind is not HangKind.UNKNOWN:
        return _of_found(generation, suspects, found)
    first = suspects[0]
    how = "is stopped" if first.frozen else f"made no progress and wrote nothing for {mono - first.active_at:.0f} s"
    never = "" if first.reported else ", and has not reported anything since its start (recovery.hang_at_start)"
    text = f"rank {first.number} on node {first.node} hung: it {how}{never}"
    return Verdict(
        Cause.HANG,
        text,
        first.number,
        first.node,
        evidence="; ".join((_steps(generation), *(found.evidence if found is not None else ()))),
        brief=f"hang, rank {first.number}",
    )


def _of_found(generation: Generation, suspects: Sequence[Rank], found: HangVerdict) -> Verdict:
    """Return the verdict on a hang whose culprit the inspection of all ranks has named in `found`.

    If that names no rank, the first of `suspects`, the silent ranks, is named.
    """
    culprit_ = generation.ranks[found.ranks[0]] if found.ranks else suspects[0]
    return Verdict(
        Cause.HANG,
        found.text,
        culprit_.number,
        culprit_.node,
        found.where or None,
        evidence="; ".join(filter(None, (found.hint, _steps(generation), *found.evidence))),
        brief=f"hang: {str(found.kind).replace('_', ' ')}, rank {culprit_.number}",
        same=found.same,
        distrusted=culprit_.node if found.distrusts_node else None,
    )


def _steps(generation: Generation) -> str:
    """Return as text the newest step of each live rank, for the first few ranks: `steps by rank: 0: 12, 1: 12, and 6
    more`.
    """
    live = [rank for rank in generation.ranks if rank.live]
    known = ", ".join(f"{rank.number}: {'-' if rank.step is None else rank.step}" for rank in live[:_NAMED])
    rest = f", and {len(live) - _NAMED} more" if len(live) > _NAMED else ""
    return f"steps by rank: {known}{rest}"


def unseen_end(generation: Generation, rank: Rank) -> RankExit:
    """Return the exit record, without exit code, of a rank that ended while its node was cut off."""
    return RankExit(generation.number, rank.number, rank.local, rank.node, rank.pid or 0)


def failure_of(event: Event, log: str | None = None, tail: tuple[str, ...] = ()) -> Failure | None:
    """Return the failure that `event` records as the summary that the user sees first, or None if the event has no
    cause, and so records no failure.

    `log` and `tail` are the path and the last lines of the failed rank's log, if it has one.
    """
    if event.cause is None:
        return None
    return Failure(
        cause=event.cause,
        summary=event.text,
        attempt=event.attempt,
        generation=event.generation,
        rank=event.rank,
        node=event.node,
        where=event.where or (stuck_at(tail) or None if event.cause is Cause.HANG else None),
        left_out=event.left_out,
        log=log,
        tail=tail,
        at=event.at,
    )


def of_stop(kind: str) -> Verdict:
    """Return the verdict for a requested stop; `kind` is `cancel`, `limit` or another key of `STOPS`."""
    if kind == "cancel":
        return Verdict(Cause.CANCELLED, "cancelled")
    if kind == "limit":
        return Verdict(Cause.TIME_LIMIT, STOPS["limit"])
    return Verdict(Cause.PREEMPTED, f"preempted: {STOPS[kind]}")


def of_limit(plan: Plan) -> Verdict:
    """Return the verdict that the spec's time limit is reached."""
    return Verdict(Cause.TIME_LIMIT, f"the time limit of {plan.spec.resources.time_s:g} s is reached")


def is_of_peers_alone(generation: Generation) -> bool:
    """Return whether all failures so far are about connections to other ranks; those of ranks that the launcher was
    stopping do not count.
    """
    return all(end.stopping or classify(end) is Cause.COMMUNICATION for end in generation.failures)
