"""Send the notification of a run's end if no process of the run was left to send it, as after a job that was killed as
a whole (`launch notify --due`).

Each message is sent once: it is recorded in the run's events, and only one process sends at a time.
"""

import time
from collections.abc import Iterator, Sequence

import msgspec

from launcher.errors import Fenced
from launcher.run.attempts import newest
from launcher.run.durable import Damaged, append_line, read_lines, readable
from launcher.run.fence import check_fence
from launcher.run.layout import RunDir
from launcher.run.locks import locked
from launcher.run.records import NOT_TOLD, TOLD, AttemptEnd, Event, RunState, StopRequest
from launcher.status.derive import RunStatus
from launcher.supervisor.messenger import LINGER_S
from launcher.supervisor.notify.delivery import NotDelivered, deliver
from launcher.supervisor.notify.due import Glance, due, note_of, settled
from launcher.supervisor.notify.message import Message, cleaned
from launcher.supervisor.notify.record import Notifying

LATE_S = 1.5 * LINGER_S  # a run's own process sends notifications for that long after its end


class Delivery(msgspec.Struct, frozen=True):
    """The result of sending a message to one recipient; `problem` is "" if it was delivered."""

    recipient: str  # its name without secrets (`label`)
    problem: str = ""


def notify_of_end(run: RunDir, status: RunStatus) -> Iterator[Delivery]:
    """Send the notification of the run's end to each recipient that has not received it, and yield each result; nothing
    is sent before the first result is asked for.

    Send none if the run's own processes may still send it, another process is sending now, or the run was cancelled.
    Raise Damaged or OSError if the records cannot be read.
    """
    what = readable(run.notify, Notifying)
    if what is None or not _is_late(run, status, time.time()):
        return
    with locked(run.notify_lock, optional=True) as lock:
        if lock is None:
            return  # another process is sending now
        events = read_lines(run.events, Event)
        message = end_of(what, status, events, time.time())
        if message is None:
            return
        secrets = (*what.secrets(), *(readable(run.secrets, dict[str, str]) or {}).values())
        yield from _sent(run, status.attempt, what, cleaned(message, secrets), settled(events))


def end_of(what: Notifying, status: RunStatus, events: Sequence[Event], at: float) -> Message | None:
    """Return the message of the run's end, with the time `at`; return None if the user wants none, or if for every
    recipient it was delivered or given up, as the run's `events` tell. `what` has the recipients, and the occasions on
    which the user wants messages.

    If only the cluster shows how the run ended, an earlier failure in the records is not given as the cause.
    """
    shared = {name: getattr(status, name) for name in RunState.__struct_fields__ if name in RunStatus.__struct_fields__}
    failure = status.failure if status.ended_at is not None else None
    state = RunState(**shared | {"restarts": status.restarts.by_cause, "failure": failure})
    ends = [one for one in due(what, Glance(events, state, None, over=True), at) if one.kind == "ended"]
    known = settled(events)
    return next((one for one in ends if any((one.key, to.id) not in known for to in what.recipients)), None)


def _is_late(run: RunDir, status: RunStatus, now: float) -> bool:
    """Return whether the run ended, other than by a cancel, so long ago that none of its own processes can still be
    sending: more than LATE_S seconds (15 minutes), or at an unknown time.
    """
    attempt = newest(run)
    if attempt is None or not status.state.ended or (status.ended_at is not None and now - status.ended_at < LATE_S):
        return False
    end, stop = readable(attempt.end, AttemptEnd), readable(attempt.stop, StopRequest)
    alone = end is not None and end.alone  # written by one host of several
    return not alone and (stop is None or stop.kind != "cancel")


def _sent(
    run: RunDir, attempt: int, what: Notifying, message: Message, known: set[tuple[str, str]]
) -> Iterator[Delivery]:
    """Send the message to each recipient, record and yield each result; stop if the run was resumed meanwhile. A
    failure that another try may mend is not recorded, so that the next call tries again.

    Recipients are skipped if `known` has the message's key with their id: they have the message, or it was given up.
    """
    for to in what.recipients:
        if (message.key, to.id) in known:
            continue
        try:
            check_fence(run, attempt)
        except Fenced:
            return  # the run was resumed
        kind, problem = TOLD, ""
        try:
            deliver(to, message, what, run.path)
        except NotDelivered as error:
            kind, problem = NOT_TOLD, error.text
            if error.again:
                yield Delivery(to.label, f"{problem}; it is tried again the next time")
                continue
        try:
            append_line(run.events, note_of(time.time(), attempt, kind, message, to, problem))
        except (Damaged, OSError) as error:
            problem = f"{problem}; not noted: {error}".removeprefix("; ")
        yield Delivery(to.label, problem)
