"""Writing how an attempt ended where the coordinator could not do it itself."""

import contextlib
import time

import msgspec

from launcher.errors import Exit
from launcher.plan.model import Plan
from launcher.recovery.policy import decide, restarts_by_cause
from launcher.rundir.attempts import newest, used_s_of
from launcher.rundir.durable import append_line, create_record, read_record, write_record
from launcher.rundir.events import read_events
from launcher.rundir.fence import check_fence
from launcher.rundir.identity import this_process
from launcher.rundir.layout import AttemptDir, RunDir
from launcher.rundir.records import AttemptEnd, Event, Failure, RunState, StopRequest
from launcher.words import Action, Cause, State, exit_of


def write_end(run: RunDir, attempt: AttemptDir, end: AttemptEnd, plan: Plan, failure: Failure | None = None) -> None:
    """The end record, the event, and the state that follows from it; refused where a newer attempt exists.

    A fence that was only promised, to one that then came to nothing, leaves the newest attempt its last word.
    """
    last = newest(run)
    if last is None or last.number > attempt.number:
        check_fence(run, attempt.number)
    write_record(attempt.end, end)
    said = end.message or str(end.state)
    kind = "requeue" if end.state is State.QUEUED else "ended"
    append_line(run.events, Event(end.ended_at, attempt.number, kind, said, cause=end.cause))
    write_record(run.state, _final_state(run, attempt, end, plan, failure))


def is_cancelled(attempt: AttemptDir) -> bool:
    """A person has asked for its end."""
    request = read_record(attempt.stop, StopRequest)
    return request is not None and request.kind == "cancel"


def ask_to_stop(attempt: AttemptDir, kind: str) -> None:
    """The first request stands, but for a cancel: a person who does not want the run to go on is always heard."""
    request = StopRequest(kind, time.time(), this_process())
    if kind != "cancel":
        with contextlib.suppress(FileExistsError):
            create_record(attempt.stop, request)
    elif not is_cancelled(attempt):
        write_record(attempt.stop, request)


def pass_on_stop(before: AttemptDir | None, attempt: AttemptDir) -> None:
    """A request for the attempt before was meant for the run, which had just moved on: it is for this one too."""
    late = read_record(before.stop, StopRequest) if before is not None else None
    if late is not None and not attempt.stop.exists():
        write_record(attempt.stop, late)


def cancelled(text: str = "cancelled") -> AttemptEnd:
    return AttemptEnd(State.CANCELLED, Cause.CANCELLED, Exit.CANCELLED, time.time(), text)


def cut_short(attempt: AttemptDir, doing: str, at: float) -> AttemptEnd:
    """The last word where it was stopped while it was not running: by a cancel, or the machine shuts down."""
    if is_cancelled(attempt):
        return cancelled()
    return AttemptEnd(State.FAILED, Cause.PREEMPTED, Exit.PREEMPTED, at, f"stopped from outside while {doing}")


def write_failure(
    run: RunDir, attempt: AttemptDir, plan: Plan, cause: Cause, text: str, *, evidence: str = ""
) -> AttemptEnd:
    """The attempt is gone without a last word: note the failure of its first node, and say what follows it."""
    last = read_record(run.state, RunState)
    event = Event(
        at=time.time(),
        attempt=attempt.number,
        kind="failure",
        text=text,
        generation=last.generation if last is not None and last.attempt == attempt.number else 0,
        node=0,
        cause=cause,
        step=last.step if last is not None else None,
        checkpoint=last.checkpoint if last is not None else None,
        evidence=evidence,
    )
    history = read_events(run)
    append_line(run.events, event)
    decision = decide(event, history, plan.spec.recovery, can_regroup=False)
    end = AttemptEnd(
        state=State.FAILED if decision.action is Action.END else State.QUEUED,
        cause=decision.cause,
        exit_code=exit_of(decision.cause),
        ended_at=event.at,
        message=decision.reason,
        delay_s=decision.delay_s,
    )
    write_end(run, attempt, end, plan, Failure(cause, text, attempt.number, event.generation, node=0, at=event.at))
    return end


def _final_state(run: RunDir, attempt: AttemptDir, end: AttemptEnd, plan: Plan, failure: Failure | None) -> RunState:
    last = read_record(run.state, RunState) or first_state(plan, attempt.number)
    return msgspec.structs.replace(
        last,
        attempt=attempt.number,
        state=end.state,
        cause=end.cause,
        exit_code=end.exit_code if end.state.ended else None,
        message=end.message,
        failure=failure or last.failure,
        restarts=restarts_by_cause(read_events(run)),
        ranks=(),
        ended_at=end.ended_at if end.state.ended else None,
        used_s=used_s_of(run, attempt, last),
        updated_at=time.time(),
        monotonic_s=time.monotonic(),
    )


def first_state(plan: Plan, attempt: int) -> RunState:
    """What is known of an attempt before its coordinator has said anything."""
    return RunState(
        run=plan.run_id,
        name=plan.name,
        cluster=plan.cluster,
        state=State.STARTING,
        attempt=attempt,
        generation=0,
        submitted_at=plan.submitted_at,
        message="starting agents",
        updated_at=time.time(),
    )
