"""The events that go into the coordinator's state machine beside messages, and the effects that come out of it."""

from dataclasses import dataclass
from typing import NamedTuple, TypedDict, Unpack

import msgspec

from launcher.coordinator.pace import Pace
from launcher.run.hangs import HangReport
from launcher.run.records import AttemptEnd, Event, RankExit
from launcher.states import Cause, ErrorKind, State
from launcher.wire.messages import ToAgent, ToCoordinator


class Now(NamedTuple):
    """A moment on three clocks, in seconds: `mono` for decisions, `wall` only for records that people read, `boot` for
    the run's state record, so that a reader on this machine can tell the age of the record.

    `mono` does not advance while the coordinator is suspended, so that no node is blamed for messages which the
    coordinator could not receive.
    """

    mono: float  # the coordinator's monotonic clock
    wall: float  # Unix time
    boot: float = 0.0  # since the machine was started, suspended time included


@dataclass(frozen=True, slots=True)
class Disconnected:
    """The connection to an agent has closed; the agent itself may still run."""

    node: int


@dataclass(frozen=True, slots=True)
class ProvenDead:
    """The agent that was last seen on this node, and is not connected, has exited with all its ranks."""

    node: int
    evidence: str


@dataclass(frozen=True, slots=True)
class Drain:
    """A request to give a node no more ranks; its present ranks are moved once other nodes can have them."""

    node: int
    why: str = ""  # the scheduler's reason; "": a user asked


@dataclass(frozen=True, slots=True)
class Move:
    """A request to move the ranks of the node `node` to the node `to`, or to any ready node without ranks. `node` then
    stays in the attempt as a spare.
    """

    node: int
    to: int | None = None  # None: any node that is ready and has no ranks


@dataclass(frozen=True, slots=True)
class EndAttempt:
    """A request to end the attempt that comes from outside the agents, for the reason `kind`, such as `cancel` or
    `limit` (a key of `STOPS`).
    """

    kind: str


@dataclass(frozen=True, slots=True)
class StoodStill:
    """The coordinator's process stood still for `seconds`, for example suspended; no lease or limit counts them."""

    seconds: float


@dataclass(frozen=True, slots=True)
class Tick:
    """A timer event: time has passed and nothing else has happened."""


@dataclass(frozen=True, slots=True)
class Send:
    """Send a message to a node; drop it if the node is not connected.

    When the node returns, the coordinator sends again what is still needed.
    """

    node: int
    message: ToAgent


@dataclass(frozen=True, slots=True)
class Record:
    """Append an event to `events.jsonl`."""

    event: Event


@dataclass(frozen=True, slots=True)
class RecordExit:
    """Write the exit record of a rank."""

    exit: RankExit


@dataclass(frozen=True, slots=True)
class KeepHang:
    """Write the report of hang number `number` of the attempt, in place of an earlier report of the same hang."""

    number: int
    report: HangReport


@dataclass(frozen=True, slots=True)
class Finish:
    """The last effect of an attempt: write its end record, which makes the end valid, and then the event about it."""

    end: AttemptEnd
    event: Event


In = ToCoordinator | Disconnected | ProvenDead | Drain | Move | EndAttempt | StoodStill | Tick
Out = Send | Record | RecordExit | KeepHang | Finish


_ENDS_TRAINING = ("failure", "regroup")


class EventFields(TypedDict, total=False):
    """The optional fields of any event, beside its text: the node and the rank that it is about, its cause, and the
    evidence for that.
    """

    node: int | None
    rank: int | None
    cause: Cause | None
    evidence: str
    brief: str  # a shorter form of the text, for log and status


class FailureFields(TypedDict, total=False):
    """The fields that only a failure event has; the recovery policy uses them."""

    where: str | None  # the frame of user code that failed
    left_out: str  # the missing file if the cause is a file that was not copied with the code
    signal: int | None  # that ended the rank
    code: int | None  # the rank's exit code
    said: str  # the last line of the rank's log if the rank ended without an exception
    error_kind: ErrorKind | None  # how the user's program failed; None: the cause is another than its own error
    in_place: bool  # surviving ranks kept their processes
    same: str  # equal for equal hangs which no restart can cure, else ""


class Ledger:
    """The effects that the coordinator returns for one event, in order, and the time of that event."""

    def __init__(self, attempt: int, pace: Pace, now: Now) -> None:
        self.attempt = attempt
        self.generation = 0  # the newest
        self.opened_at = now.mono  # when it was
        self.now = now
        self.out: list[Out] = []
        self._pace = pace

    @property
    def mono(self) -> float:
        """Return the monotonic time of the event that is being handled."""
        return self.now.mono

    def begin_event(self, now: Now) -> None:
        """Begin to handle a new event: set the time and drop the effects of the previous event."""
        self.now, self.out = now, []

    def send(self, node: int, message: ToAgent) -> None:
        """Add an effect that sends a message to this node."""
        self.out.append(Send(node, message))

    def record(self, kind: str, text: str, **known: Unpack[EventFields]) -> Event:
        """Add an effect that appends an event of this kind to `events.jsonl`, and return the event. It has the given
        text, the fields in `known`, and the run's progress.
        """
        event = self.draft(kind, text, **known)
        self.append(event)
        return event

    def append(self, event: Event) -> None:
        """Add an effect that appends this event to `events.jsonl`."""
        self.out.append(Record(event))

    def draft(
        self,
        kind: str,
        text: str,
        *,
        node: int | None = None,
        rank: int | None = None,
        cause: Cause | None = None,
        evidence: str = "",
        brief: str = "",
        **more: Unpack[FailureFields],
    ) -> Event:
        """Return an event of this kind with the given fields and the run's progress, without recording it; `append`
        records it. `text` is a line for people, `brief` a few words of it for a log, and `evidence` a detail.
        """
        plain = self._event(kind, text, cause)
        known = {"node": node, "rank": rank, "evidence": evidence, "brief": brief}
        return msgspec.structs.replace(plain, **known, **more)

    def record_exit(self, end: RankExit) -> None:
        """Add an effect that writes a rank's exit record."""
        self.out.append(RecordExit(end))

    def keep_hang(self, number: int, report: HangReport) -> None:
        """Add an effect that writes the report of hang number `number` of the attempt."""
        self.out.append(KeepHang(number, report))

    def finish(self, end: AttemptEnd, brief: str = "") -> None:
        """Add the last effect of the attempt: its end record, and the event about it; `brief` is a shorter text for
        that event.
        """
        kind = "requeue" if end.state is State.QUEUED else "ended"
        event = msgspec.structs.replace(self._event(kind, end.message, end.cause), brief=brief)
        self.out.append(Finish(end, event))

    def _event(self, kind: str, text: str, cause: Cause | None) -> Event:
        """Return a new event of this kind, with the time, the generation and how far the run is now: its step and its
        newest checkpoint. It is not recorded yet.
        """
        return Event(
            at=self.now.wall,
            attempt=self.attempt,
            kind=kind,
            text=text,
            generation=self.generation,
            cause=cause,
            step=self._pace.step,
            checkpoint=self._pace.checkpoint,
            ran_s=round(self.mono - self.opened_at, 1) if kind in _ENDS_TRAINING else 0.0,
            still_s=round(self._pace.still_s(self.mono), 3) if kind in _ENDS_TRAINING else 0.0,
            steps=self._pace.made if kind == "failure" else 0,
            steps_in_all=self._pace.made_in_all if kind == "failure" else 0,
        )
