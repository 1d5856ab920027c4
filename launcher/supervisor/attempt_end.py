"""Write how an attempt ended if the coordinator could not do it itself. An attempt is one start of a run, and the
coordinator the part of its first agent that decides what happens to its ranks. A generation is one set of ranks that
train together.
"""

import contextlib
import os
import signal
import time
from collections.abc import Callable, Sequence

import msgspec

from launcher.clock import boottime
from launcher.coordinator.classify import finished
from launcher.coordinator.policy import decide, restarts_by_cause
from launcher.coordinator.verdict import RESTART, STOPS
from launcher.errors import Exit, LaunchError
from launcher.plan.model import Plan
from launcher.run.attempts import newest, used_s_of
from launcher.run.durable import (
    Damaged,
    append_line,
    create_record,
    make_dir,
    read_lines,
    read_record,
    readable,
    write_record,
)
from launcher.run.fence import check_fence
from launcher.run.identity import this_process
from launcher.run.layout import AttemptDir, RunDir
from launcher.run.records import AttemptEnd, Event, Failure, Intent, ProcessId, RankExit, RunState, StopRequest
from launcher.spec.model import Recovery
from launcher.states import Action, Cause, State, exit_of

CANCEL_SURE_S = 10.0  # beyond the grace, until a cancel ends by force what its supervisor should have ended


def write_end(
    run: RunDir, attempt: AttemptDir, end: AttemptEnd, plan: Plan | None, failure: Failure | None = None
) -> None:
    """Write the attempt's end record, then the event and the state that follow from it; raise Fenced if a newer attempt
    exists, and OSError if they cannot be written.

    `plan` is None if it cannot be read any more. `failure` becomes the failure that the state shows; None keeps an
    earlier one unless the run has succeeded.
    """
    _check_newest(run, attempt)
    make_dir(attempt.path)
    write_record(attempt.end, end)
    settle(run, attempt, end, plan, failure)


def record_damage(run: RunDir, error: Damaged) -> None:
    """Write an end of the newest attempt that names the damaged record without which its supervisor cannot continue.

    Nothing is written if the attempt belongs to another process: a supervisor that was cut off may not have noticed
    that the run continues elsewhere. Raise Fenced if a newer attempt exists, and OSError if the end cannot be written.
    """
    last, me = newest(run), this_process()
    if last is None:
        return
    intent = readable(last.intent, Intent)
    if me in (readable(last.started, ProcessId), intent.created_by if intent is not None else None):
        said = AttemptEnd(State.FAILED, Cause.LAUNCHER_FAULT, Exit.LAUNCHER_FAULT, time.time(), str(error))
        write_end(run, last, said, None)


def settle(
    run: RunDir, attempt: AttemptDir, end: AttemptEnd, plan: Plan | None, failure: Failure | None = None
) -> None:
    """Write the event and the run's state that follow from the attempt's end record, `end`, unless the writer of that
    record did so before it died.

    `plan` is None if it cannot be read any more. `failure` becomes the failure that the state shows; None keeps an
    earlier one unless the run has succeeded. Raise Fenced if a newer attempt exists, and OSError if the event or the
    state cannot be written.
    """
    kind = "requeue" if end.state is State.QUEUED else "ended"
    if not any(event.attempt == attempt.number and event.kind == kind for event in read_lines(run.events, Event)):
        _check_newest(run, attempt)
        said = end.message or str(end.state)
        append_line(run.events, Event(end.ended_at, attempt.number, kind, said, cause=end.cause))
    before = readable(run.state, RunState) or (first_state(plan, attempt.number) if plan is not None else None)
    follows = (attempt.number, end.state, end.cause, end.message)
    if before is not None and (before.attempt, before.state, before.cause, before.message) != follows:
        _check_newest(run, attempt)
        write_record(run.state, _final_state(run, attempt, end, before, failure))


def _check_newest(run: RunDir, attempt: AttemptDir) -> None:
    """Raise Fenced if a newer attempt has taken over: the run's file FENCE names a higher number than this attempt's,
    and a newer attempt has a folder. Without such a folder FENCE is not read. Raise Damaged if FENCE cannot be read.
    """
    last = newest(run)
    if last is None or last.number > attempt.number:
        check_fence(run, attempt.number)


def write_cancelled(run: RunDir, attempt: AttemptDir, plan: Plan | None, *, alone: bool = False) -> None:
    """Write that the attempt was cancelled, unless it has an end; raise LaunchError if that cannot be written, and
    Fenced if a newer attempt exists.

    `plan` is None if it cannot be read any more. `alone` records that a host wrote the end which does not lead the
    attempt, so that other hosts may have continued.
    """
    if has_ended(run, attempt):
        return
    try:
        read_record(attempt.end, AttemptEnd)  # a damaged one may hold another end
        write_end(run, attempt, msgspec.structs.replace(cancelled(), alone=alone), plan)
    except (Damaged, OSError) as error:
        text = f"no process of {run.path.name} is left, but its folder cannot be written to record the cancel"
        raise LaunchError(text, str(error)) from error


def has_ended(run: RunDir, attempt: AttemptDir) -> bool:
    """Return whether the attempt has ended and no other follows by itself: whether the record of its end says so, or
    the run's state if that is the state in this attempt. A record that cannot be read counts as missing.
    """
    end, state = readable(attempt.end, AttemptEnd), readable(run.state, RunState)
    by_state = state is not None and state.attempt == attempt.number and state.state.ended
    return by_state or (end is not None and end.state.ended)


def grace_s_of(plan: Plan | None) -> float:
    """Return the seconds that ranks may take to save before they are killed; for None, a plan that cannot be read, the
    default.
    """
    return (plan.spec.recovery if plan is not None else Recovery()).grace_s


def is_cancelled(attempt: AttemptDir) -> bool:
    """Return whether a user has asked to cancel the attempt."""
    return _stop_kind(attempt) == "cancel"


def _stop_kind(attempt: AttemptDir) -> str | None:
    """Return the kind of the attempt's stop request, such as cancel or preempt, or None if there is none."""
    request = readable(attempt.stop, StopRequest)
    return request.kind if request is not None else None


def ask_to_stop(attempt: AttemptDir, kind: str) -> None:
    """Record a request to stop for the reason `kind`, such as cancel, preempt or limit. The first request counts, but a
    `cancel` replaces any other.

    An error is ignored, because the caller sends a signal as well.
    """
    request = StopRequest(kind, time.time(), this_process())
    with contextlib.suppress(OSError, Damaged):
        make_dir(attempt.path)
        if kind != "cancel":
            create_record(attempt.stop, request)
        elif not is_cancelled(attempt):
            write_record(attempt.stop, request)


def pass_on_stop(before: AttemptDir | None, attempt: AttemptDir) -> None:
    """Copy to `attempt` the stop request of the attempt `before`, which came just after that attempt had ended. Do
    nothing if there is none, if `before` is None, or if `attempt` has a request of its own. Raise OSError if it cannot
    be written.
    """
    late = readable(before.stop, StopRequest) if before is not None else None
    if late is not None and not attempt.stop.exists():
        write_record(attempt.stop, late)


def cancelled(text: str = "cancelled") -> AttemptEnd:
    """Return the end of an attempt that a user cancelled, with the message `text`."""
    return AttemptEnd(State.CANCELLED, Cause.CANCELLED, Exit.CANCELLED, time.time(), text)


def cut_short(attempt: AttemptDir, doing: str, at: float) -> AttemptEnd:
    """Return the end of an attempt that was stopped while no ranks ran: cancelled if a user asked for that, else
    preempted.

    `doing` says in the message what the attempt did, such as "it waited for its turn"; `at` is the time of the end.
    """
    if is_cancelled(attempt):
        return cancelled()
    return AttemptEnd(State.FAILED, Cause.PREEMPTED, Exit.PREEMPTED, at, f"stopped from outside while {doing}")


def write_known_end(run: RunDir, attempt: AttemptDir, plan: Plan) -> AttemptEnd | None:
    """Write and return the end of an attempt whose coordinator is gone, if its records show how it ended: by an end
    record, by a stop that was requested, or because all ranks have finished.

    Return None if they show none of these. Raise Fenced if a newer attempt exists, and OSError if the end cannot be
    written.
    """
    end = readable(attempt.end, AttemptEnd)
    if end is not None:
        settle(run, attempt, end, plan)
        return end
    if is_cancelled(attempt):
        end = cancelled()
    elif _stop_kind(attempt) == RESTART:
        end = AttemptEnd(State.QUEUED, None, Exit.OK, time.time(), f"a new attempt follows: {STOPS[RESTART]}")
    elif has_finished(run, attempt, plan):
        end = AttemptEnd(State.SUCCEEDED, None, Exit.OK, time.time(), "all ranks have finished")
    else:
        return None
    write_end(run, attempt, end, plan)
    return end


def has_finished(run: RunDir, attempt: AttemptDir, plan: Plan) -> bool:
    """Return whether the records on disk show that every rank of the newest generation has done all its work.

    In two cases return False whatever they show: if each node has a disk of its own, as its checkpoints may not be
    copied to another node yet; and if the run has roles and none is the main one, as it ends only with the last.
    """
    history = read_lines(run.events, Event)
    opened = [one.generation for one in history if one.attempt == attempt.number and one.kind == "generation_opened"]
    if not opened or plan.disks_apart or plan.ends_with_all:
        return False
    newest_generation = max(opened)
    last = readable(run.state, RunState)
    size = plan.nodes_max * plan.ranks_per_node if plan.nodes_min == plan.nodes_max else None
    if last is not None and (last.attempt, last.generation) == (attempt.number, newest_generation):
        size = last.world_size
    files = (attempt.exits, *(attempt.node_exits(node.index) for node in plan.nodes))
    told = [one for file in files for one in read_lines(file, RankExit) if one.generation == newest_generation]
    exits = {one.rank: one for one in told}
    return len(exits) == size and all(map(finished, exits.values()))


WriteEnd = Callable[[AttemptEnd, Failure], AttemptEnd]  # writes how an attempt ends; returns what it has written


def settle_end(
    run: RunDir, attempt: AttemptDir, plan: Plan, status: int | None, write: WriteEnd | None = None
) -> AttemptEnd:
    """Return the attempt's end, and write it unless the coordinator did. It is the end that the records show, such as a
    cancellation, or else a failure. `status`, the wait status of the coordinator's agent (None: this process ended the
    agent), tells which failure, and `write` is called to write it (None: this function does).

    If the agent exited because a newer attempt took over, return a failure and write nothing. Otherwise raise Fenced
    if a newer attempt exists, and OSError if the end cannot be written.
    """
    fenced = status is not None and os.WIFEXITED(status) and os.WEXITSTATUS(status) == Exit.FENCED
    if fenced and not attempt.end.exists():
        text = "a newer attempt took over"
        return AttemptEnd(State.FAILED, Cause.LAUNCHER_FAULT, Exit.FENCED, time.time(), text)
    end = write_known_end(run, attempt, plan)
    if end is not None:
        return end
    lost = status is None or os.WIFSIGNALED(status) or os.WEXITSTATUS(status) == Exit.LOST
    log = attempt.agent_log(0).relative_to(run.path)
    how = "was ended" if status is None else _how(status)
    text = f"the agent of node 0, which coordinates, {how}" + ("" if lost else f"; see {log}")
    cause = Cause.NODE_LOST if lost else Cause.LAUNCHER_FAULT
    evidence = "" if status is None else f"wait status {status}"
    return write_failure(run, attempt, plan, cause, text, evidence=evidence, write=write)


def _how(status: int) -> str:
    """Return how an agent with this wait status ended, such as "was killed by SIGKILL"."""
    if os.WIFSIGNALED(status):
        return f"was killed by {signal.Signals(os.WTERMSIG(status)).name}"
    if os.WEXITSTATUS(status) == Exit.LOST:
        return "stood still, or reached too few voters, for longer than its lease"
    return f"left with exit code {os.WEXITSTATUS(status)}"


def write_failure(
    run: RunDir,
    attempt: AttemptDir,
    plan: Plan,
    cause: Cause,
    text: str,
    *,
    evidence: str = "",
    write: WriteEnd | None = None,
) -> AttemptEnd:
    """Record the failure of an attempt that is gone without an end record; let the recovery policy choose what follows,
    write the end that says so, and return it.

    `text` is the failure in one line, for people, and `evidence` a detail of it for the event. The end is written by
    `write` if that is given, and the result is then what `write` returns; else Fenced is raised if a newer attempt
    exists. Raise OSError if a record cannot be written.
    """
    last, history = readable(run.state, RunState), read_lines(run.events, Event)
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
        ran_s=_ran_s(history, attempt, last),
        evidence=evidence,
    )
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
    failure = Failure(cause, text, attempt.number, event.generation, node=0, at=event.at)
    if write is not None:
        return write(end, failure)
    write_end(run, attempt, end, plan, failure)
    return end


def announce_end(run: RunDir, attempt: AttemptDir, end: AttemptEnd) -> AttemptEnd:
    """Append an event to the run's history that says how the run is about to end, and return `end`, the end record.
    In a pool of hosts the caller writes that only after half of the voters have copied the event.

    So a host that takes over in between ends the run in the same way. Raise OSError if the event cannot be written.
    """
    text = f"about to end: {end.message or end.state}"
    append_line(run.events, Event(time.time(), attempt.number, "ending", text, cause=end.cause, end=end))
    return end


def _ran_s(history: Sequence[Event], attempt: AttemptDir, last: RunState | None) -> float:
    """Return the seconds for which the attempt's last generation was known to run, from its opening in `history` to the
    last state; 0 if either is missing.
    """
    opened = [one.at for one in history if one.kind == "generation_opened" and one.attempt == attempt.number]
    if last is None or last.attempt != attempt.number or not opened:
        return 0.0
    return round(max(0.0, last.updated_at - opened[-1]), 1)


def _final_state(
    run: RunDir, attempt: AttemptDir, end: AttemptEnd, last: RunState, failure: Failure | None
) -> RunState:
    """Return the run's state after the attempt's end: the state recorded before, `last`, with what `end` says.

    It shows `failure` as the run's failure or, if that is None, the one that `last` shows; if the run has succeeded it
    shows none.
    """
    return msgspec.structs.replace(
        last,
        attempt=attempt.number,
        state=end.state,
        cause=end.cause,
        exit_code=end.exit_code if end.state.ended else None,
        message=end.message,
        failure=None if end.state is State.SUCCEEDED else failure or last.failure,
        restarts=restarts_by_cause(read_lines(run.events, Event)),
        ranks=(),
        ended_at=end.ended_at if end.state.ended else None,
        used_s=used_s_of(run, attempt, last),
        updated_at=time.time(),
        monotonic_s=boottime(),
    )


def first_state(plan: Plan, attempt: int) -> RunState:
    """Return the state to record for an attempt whose coordinator has not written any yet: STARTING, without ranks."""
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
