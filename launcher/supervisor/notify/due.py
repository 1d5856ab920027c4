"""Decide which notifications of a run are due (started, restarted, stalled, ended), from its records and the time. Pure
functions. Each message has a key, unique in its run, so that it is sent once.
"""

from collections.abc import Iterator, Mapping, Sequence

import msgspec

from launcher.coordinator.policy import restarts_by_cause
from launcher.run.records import NOT_TOLD, TOLD, AttemptEnd, Event, RunState
from launcher.states import State
from launcher.supervisor.notify import message
from launcher.supervisor.notify.message import Message
from launcher.supervisor.notify.record import Notifying, Recipient

_OPENED = ("submitted", "resumed")  # by a user: notifications before that do not count
_WAITS = (State.QUEUED, State.STARTING, State.REGROUPING)


class Glance(msgspec.Struct, frozen=True):
    """The records of a run, or of one of its roles, at one moment."""

    events: Sequence[Event]
    state: RunState | None  # as last recorded; None: none is recorded
    end: AttemptEnd | None  # of the newest attempt
    still_s: float = 0.0  # seconds without progress, such as a new step, checkpoint or state (`mark`)
    over: bool = False  # the supervisor has exited: no more records will be written
    roles: Mapping[str, "Glance"] = {}  # the roles other than the run's own, by the name of their folder
    outlasts_roles: bool = False  # the run goes on until all roles have ended, even if one has failed


def due(what: Notifying, glance: Glance, at: float) -> list[Message]:
    """Return every message that should have been sent by the Unix time `at`; messages that were sent are included."""
    state = glance.state
    if state is None:
        return []
    life = _since_opened(glance.events)
    number = life[0].attempt if life else state.attempt
    found = {
        "started": _started(f"started/{number}", life, state),
        "restarted": _restarted(f"restarted/{number}", life, state, what.restarts, at),
        "stalled": _stalled(state, glance, what.stalled_after_s, at),
        "ended": _ended(f"ended/{number}", state, glance, at),
    }
    told = [*found.values(), *_of_roles(number, glance, what.restarts, at)]
    return [one for one in told if one is not None and one.kind in what.on]


def note_of(at: float, attempt: int, kind: str, one: Message, to: Recipient, problem: str) -> Event:
    """Return the event, at the time `at` in attempt `attempt`, that records what became of message `one` to recipient
    `to`.

    `kind` says whether it was delivered (TOLD) or given up, `problem` why it was given up, or "".
    """
    text = f"{one.kind}: told {to.label}" if kind == TOLD else f"{one.kind}: {to.label}: {problem}"
    return Event(at, attempt, kind, text, brief=one.key, evidence=to.id)


def settled(events: Sequence[Event]) -> set[tuple[str, str]]:
    """Return (message key, recipient's id) for each message that was delivered or given up, by the events."""
    return {(one.brief, one.evidence) for one in events if one.kind in (TOLD, NOT_TOLD)}


def mark(state: RunState | None) -> object:
    """Return a value to compare with an earlier one: it differs if the run has made progress, that is if its attempt,
    generation, state, step, checkpoint or metrics have changed.
    """
    if state is None:
        return None
    return state.attempt, state.generation, state.state, state.step, state.checkpoint, state.metrics


def _since_opened(events: Sequence[Event]) -> Sequence[Event]:
    """Return the events from the last one by which a user submitted or resumed the run; all events if there is none."""
    return events[max((index for index, one in enumerate(events) if one.kind in _OPENED), default=0) :]


def _of_roles(number: int, glance: Glance, most: int, at: float) -> Iterator[Message | None]:
    """Yield, for each role other than the main one, the message that it was restarted more than `most` times since a
    user last submitted or resumed the run, or None if it was not. `glance` has the records of the run and its roles.

    If the run goes on although such a role has failed, yield the message of that, too. `number` is the number of the
    attempt that this submit or resume opened; `at` is the time of the messages.
    """
    for name, of_role in glance.roles.items():
        if of_role.state is None:
            continue
        yield _restarted(f"restarted/{number}/{name}", _since_opened(of_role.events), of_role.state, most, at, name)
        goes_on = glance.outlasts_roles and not (glance.over or (glance.state is not None and glance.state.state.ended))
        if goes_on and of_role.end is not None and of_role.end.state is State.FAILED:
            yield message.ended(f"ended/{number}/{name}", of_role.state, of_role.end, at, name)


def _started(key: str, life: Sequence[Event], state: RunState) -> Message | None:
    """Return the message that the run has started, with the key `key`, or None if it has not; `life` are the events
    since the user's last submit or resume.
    """
    opened = next((one for one in life if one.kind == "generation_opened"), None)
    return None if opened is None else message.started(key, state, opened)


def _restarted(
    key: str, life: Sequence[Event], state: RunState, most: int, at: float, role: str = ""
) -> Message | None:
    """Return the message that the run, or with `role` that role of it, was restarted more than `most` times since the
    user's submit or resume, or None if it was not.

    `life` are the events since then. `key` identifies the message, `at` is its time, and `state` the recorded state
    that it shows.
    """
    restarts = restarts_by_cause(life)
    return message.restarted(key, state, at, restarts, role) if sum(restarts.values()) > most else None


def _stalled(state: RunState, glance: Glance, after_s: float, at: float) -> Message | None:
    """Return the message, of the time `at`, that the run has made no progress for `after_s` seconds or more, or None;
    `glance` says for how long.

    A run that is queued, starting or regrouping gets it in any case; one that runs only if its script has reported a
    step or a metric, because otherwise it cannot be told whether the script makes progress; one that has ended never.
    """
    reports = state.step is not None or bool(state.metrics)
    if state.state.ended or glance.over or glance.still_s < after_s or not (state.state in _WAITS or reports):
        return None
    key = f"stalled/{state.attempt}.{state.generation}.{state.state}.{state.step}"
    return message.stalled(key, state, at, glance.still_s)


def _ended(key: str, state: RunState, glance: Glance, at: float) -> Message | None:
    """Return the message, of the Unix time `at`, that the run has ended, by its recorded state or, once its supervisor
    has exited, by its last attempt's end; None if it has not. `glance` has the run's records, `state` its last recorded
    state, and `key` becomes the message's key.

    If a host wrote the end that did not lead the attempt, return None, as the other hosts may have continued.
    """
    end = glance.end
    if end is not None and end.alone:
        return None
    if state.state.ended or (glance.over and end is not None and end.state.ended):
        return message.ended(key, state, end, at)
    return None
