"""What goes into the coordinator's state machine beside messages, and what comes out of it."""

from dataclasses import dataclass
from typing import NamedTuple, TypedDict, Unpack

import msgspec

from launcher.coordinator.pace import Pace
from launcher.run.hangs import HangReport
from launcher.run.records import AttemptEnd, Event, RankExit
from launcher.states import Cause, ErrorKind, State
from launcher.wire.messages import ToAgent, ToCoordinator


class Now(NamedTuple):
    """One moment on three clocks: `mono` decides, `wall` is only written down for people, `boot` for ages.

    `mono` stands still while the coordinator does: what it could not hear meanwhile, nobody has failed to say.
    """

    mono: float
    wall: float
    boot: float = 0.0


@dataclass(frozen=True, slots=True)
class Disconnected:
    """The agent's connection is gone; whether the agent is, nobody knows."""

    node: int


@dataclass(frozen=True, slots=True)
class ProvenDead:
    """The agent that was last seen on this node, and is not connected, is known to be gone with all its ranks."""

    node: int
    evidence: str


@dataclass(frozen=True, slots=True)
class Drain:
    """Somebody wants no ranks on this node any more."""

    node: int
    why: str = ""


@dataclass(frozen=True, slots=True)
class Move:
    """Somebody wants the ranks of a node on another one; the node stays in use, as a spare."""

    node: int
    to: int | None = None  # None: on any that is ready and has no ranks


@dataclass(frozen=True, slots=True)
class StoodStill:
    """The coordinator did, for so long."""

    seconds: float


@dataclass(frozen=True, slots=True)
class Tick:
    """Nothing but time has passed."""


@dataclass(frozen=True, slots=True)
class Send:
    """To a node that is not connected: dropped; the state machine says it again when the node is back."""

    node: int
    message: ToAgent


@dataclass(frozen=True, slots=True)
class Record:
    event: Event


@dataclass(frozen=True, slots=True)
class RecordExit:
    exit: RankExit


@dataclass(frozen=True, slots=True)
class KeepHang:
    """Write down what was seen of a hang, in place of what an earlier look at the same one has shown."""

    number: int
    report: HangReport


@dataclass(frozen=True, slots=True)
class Finish:
    """The last effect of an attempt: its end, which is the record that decides, and then the event that tells of it."""

    end: AttemptEnd
    event: Event


In = ToCoordinator | Disconnected | ProvenDead | Drain | Move | StoodStill | Tick
Out = Send | Record | RecordExit | KeepHang | Finish


_ENDS_TRAINING = ("failure", "regroup")


class Known(TypedDict, total=False):
    """What may be told of an event beside its text."""

    node: int | None
    rank: int | None
    cause: Cause | None
    evidence: str
    brief: str


class OfFailure(TypedDict, total=False):
    """What a failure's event has beside that, by which the policy decides."""

    where: str | None
    left_out: str
    signal: int | None
    code: int | None
    said: str
    error_kind: ErrorKind | None
    in_place: bool
    same: str


class Ledger:
    """What the coordinator says in answer to one event, and the moment at which it says it."""

    def __init__(self, attempt: int, pace: Pace, now: Now) -> None:
        self.attempt = attempt
        self.generation = 0  # the newest
        self.opened_at = now.mono  # when it was
        self.now = now
        self.out: list[Out] = []
        self._pace = pace

    @property
    def mono(self) -> float:
        return self.now.mono

    def turn(self, now: Now) -> None:
        """A new event, a new page."""
        self.now, self.out = now, []

    def send(self, node: int, message: ToAgent) -> None:
        self.out.append(Send(node, message))

    def record(self, kind: str, text: str, **known: Unpack[Known]) -> Event:
        """One line of events.jsonl, with how far the run had come."""
        event = self.draft(kind, text, **known)
        self.note(event)
        return event

    def note(self, event: Event) -> None:
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
        **more: Unpack[OfFailure],
    ) -> Event:
        """Return what would be recorded, to be decided by first."""
        plain = self._event(kind, text, cause)
        known = {"node": node, "rank": rank, "evidence": evidence, "brief": brief}
        return msgspec.structs.replace(plain, **known, **more)

    def record_exit(self, end: RankExit) -> None:
        self.out.append(RecordExit(end))

    def keep_hang(self, number: int, report: HangReport) -> None:
        self.out.append(KeepHang(number, report))

    def finish(self, end: AttemptEnd, brief: str = "") -> None:
        kind = "requeue" if end.state is State.QUEUED else "ended"
        event = msgspec.structs.replace(self._event(kind, end.message, end.cause), brief=brief)
        self.out.append(Finish(end, event))

    def _event(self, kind: str, text: str, cause: Cause | None) -> Event:
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
