"""What goes into the coordinator's state machine beside messages, and what comes out of it."""

from dataclasses import dataclass
from typing import NamedTuple

from launcher.agent.messages import ToAgent, ToCoordinator
from launcher.rundir.records import AttemptEnd, Event, RankExit


class Now(NamedTuple):
    """One moment on two clocks: `mono` decides, `wall` is only written down for people."""

    mono: float
    wall: float


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
class Finish:
    """The last effect of an attempt."""

    end: AttemptEnd


In = ToCoordinator | Disconnected | ProvenDead | Tick
Out = Send | Record | RecordExit | Finish
