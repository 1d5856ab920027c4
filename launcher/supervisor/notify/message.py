"""Build the notifications of a run from its records: their data and their text. Each has a key, unique in its run, so
that it is sent once.
"""

import math
from collections.abc import Mapping

import msgspec

from launcher.plan.secret_values import without_secrets
from launcher.run.records import AttemptEnd, Event, NotFinite, RunState
from launcher.states import State
from launcher.status.derive import next_command
from launcher.status.text import plain

_TAIL, _LONGEST_LINE = 15, 300
_METRICS = 8
_ENDED = {
    State.SUCCEEDED: "succeeded",
    State.CANCELLED: "was cancelled",
    State.FAILED: "failed",
    State.LOST: "is lost",
    State.INTERRUPTED: "is interrupted",
}


class Message(msgspec.Struct, frozen=True):
    """A notification; `key` is unique in the run, so that each is sent once.

    `kind` is started, restarted, stalled, ended or test; `at` is the Unix time of the occasion; `where` the frame of
    user code that failed; `restarts` the numbers of restarts by cause; `tail` the last lines of the failed rank's log;
    `next` a command for the user; `role` is "" if it is about the whole run.
    """

    key: str  # unique in the run; each message is sent once
    kind: str  # started, restarted, stalled, ended; test
    run: str
    name: str
    title: str
    at: float  # Unix time of the occasion
    cluster: str = ""
    state: str = ""
    cause: str | None = None
    exit_code: int | None = None
    summary: str = ""
    where: str | None = None
    step: int | None = None
    total_steps: int | None = None
    metrics: dict[str, float] = {}
    not_finite: dict[str, NotFinite] = {}
    checkpoint: int | None = None
    restarts: dict[str, int] = {}  # how many, by cause
    tail: tuple[str, ...] = ()  # the last lines of the log of the first rank that failed
    next: str = ""
    role: str = ""  # a role, or one of its ranks that restart independently; "": the whole run

    @property
    def lines(self) -> list[str]:
        """Return the text below the title and above the lines of the log: the summary, the newest step and metrics, the
        restarts, and what to do next.
        """
        at = f" at {self.where}" if self.where and self.where not in self.summary else ""
        words = [f"{self.summary}{at}" if self.summary else "", self._numbers(), self._restarted()]
        return [*(plain(line) for line in words if line), *([f"next: {plain(self.next)}"] if self.next else [])]

    @property
    def text(self) -> str:
        """Return the message as plain text: the title, the lines and the end of the log."""
        return "\n".join([self.title, *self.lines[:-1], *self.tail, *self.lines[-1:]])

    def _numbers(self) -> str:
        """Return as one line the step, the first eight metrics and the newest checkpoint's step, as far as they are
        known; "" if none is.
        """
        of = f" of {self.total_steps}" if self.total_steps is not None else ""
        steps = [f"step {self.step}{of}"] if self.step is not None else []
        wrong = {name: f"{name} {one.value} since step {one.since}" for name, one in self.not_finite.items()}
        known = {name: f"{name} {value:.4g}" for name, value in self.metrics.items() if math.isfinite(value)}
        saved = [f"checkpoint {self.checkpoint}"] if self.checkpoint is not None else []
        return ", ".join([*steps, *list((known | wrong).values())[:_METRICS], *saved])

    def _restarted(self) -> str:
        """Return the restarts by cause as one line, or "" if there were none."""
        return f"restarts: {counted(self.restarts)}" if self.restarts else ""


def cleaned(message: Message, secrets: tuple[str, ...]) -> Message:
    """Return the message with `(secret)` in place of each of the strings in `secrets` in its title, summary and log."""
    tail = tuple(without_secrets(line, secrets) for line in message.tail)
    summary = without_secrets(message.summary, secrets)
    return msgspec.structs.replace(message, title=without_secrets(message.title, secrets), tail=tail, summary=summary)


def counted(restarts: Mapping[str, int]) -> str:
    """Return the restarts by cause as text, separated by commas, such as `2 hang, 1 node_lost`."""
    return ", ".join(f"{cause} {count}" for cause, count in sorted(restarts.items()))


def started(key: str, state: RunState, opened: Event) -> Message:
    """Return the message that the run has started, at the time of its event `opened`.

    The state may be a later one, so fields of the run's end are removed from it.
    """
    state = msgspec.structs.replace(
        _going_on(state), step=opened.step, checkpoint=opened.checkpoint, metrics={}, not_finite={}, restarts={}
    )
    ranks = f" with {_many(state.world_size, 'rank')}" if state.world_size else ""
    title = f"{state.run} has started on {state.cluster}{ranks}"
    return msgspec.structs.replace(
        _message_of(key, "started", state, title, opened.at), next=f"launch status {state.run}"
    )


def _going_on(state: RunState) -> RunState:
    """Return the state of a run that may have ended since as if it still ran: RUNNING, and without the cause, exit
    code, failure, message and time of its end.
    """
    return msgspec.structs.replace(
        state, state=State.RUNNING, cause=None, exit_code=None, failure=None, message="", ended_at=None
    )


def restarted(key: str, state: RunState, at: float, restarts: Mapping[str, int], role: str = "") -> Message:
    """Return the message, of the time `at`, that the run, or its role `role`, was restarted; `restarts` has the numbers
    of restarts by cause.
    """
    state = _going_on(state) if state.state.ended else state
    title = f"{_who(state, role)} was restarted {_many(sum(restarts.values()), 'time')}: {counted(restarts)}"
    return msgspec.structs.replace(
        _message_of(key, "restarted", state, title, at), restarts=dict(restarts), next=_look_at(state, role), role=role
    )


def stalled(key: str, state: RunState, at: float, stalled_s: float) -> Message:
    """Return the message, of the time `at`, that the run has made no progress for `stalled_s` seconds."""
    done = f"after step {state.step}" if state.step is not None else f"while it is {state.state}"
    title = f"{state.run} stands still {done}: nothing new for {_minutes(stalled_s)}"
    return _message_of(key, "stalled", state, title, at)


def ended(key: str, state: RunState, end: AttemptEnd | None, at: float, role: str = "") -> Message:
    """Return the message, of the time `at`, that the run, or its role `role`, has ended.

    If the state is older than the end record `end`, the record counts; None means that there is no end record.
    """
    if end is not None and not state.state.ended:
        state = msgspec.structs.replace(
            state, state=end.state, cause=end.cause, exit_code=end.exit_code, message=end.message
        )
    cause = f": {state.cause}" if state.state is State.FAILED and state.cause is not None else ""
    title = f"{_who(state, role)} {_ENDED.get(state.state, state.state)}{cause}"
    found = _message_of(key, "ended", state, title, at)
    return msgspec.structs.replace(found, next=_look_at(state, role), role=role) if role else found


def _who(state: RunState, role: str) -> str:
    """Return the run's name, or for a role the text `role NAME of RUN`, for the title."""
    return f"role {role} of {state.run}" if role else state.run


def _look_at(state: RunState, role: str) -> str:
    """Return the command by which a user sees more: the logs of the role, or if `role` is "" the run's status."""
    return f"launch logs {state.run} --role {role}" if role else f"launch status {state.run}"


def _message_of(key: str, kind: str, state: RunState, title: str, at: float) -> Message:
    """Return a message with this key, kind, title and time, and with the other fields taken from the run's state."""
    failure = state.failure if state.state is not State.SUCCEEDED else None
    summary = failure.summary if failure is not None else state.message
    return Message(
        key=key,
        kind=kind,
        run=state.run,
        name=state.name,
        title=title,
        at=at,
        cluster=state.cluster,
        state=str(state.state),
        cause=None if state.cause is None else str(state.cause),
        exit_code=state.exit_code,
        summary=plain(summary),
        where=failure.where if failure is not None else None,
        step=state.step,
        total_steps=state.total_steps,
        metrics=state.metrics,
        not_finite=state.not_finite,
        checkpoint=state.checkpoint,
        restarts=state.restarts,
        tail=tuple(plain(line)[:_LONGEST_LINE] for line in failure.tail[-_TAIL:]) if failure is not None else (),
        next=next_command(state.run, state.state, state.cause, state),
    )


def _many(number: int, noun: str) -> str:
    """Return the number with its noun, in the plural unless it is 1."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def _minutes(seconds: float) -> str:
    """Return a duration as text, in seconds, or from two minutes on in minutes."""
    return f"{seconds:.0f} s" if seconds < 120 else f"{seconds / 60:.0f} min"
