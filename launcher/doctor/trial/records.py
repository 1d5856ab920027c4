"""What a trial's people write for each other into their folder, and what is known when it is over. Pure data."""

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from importlib import import_module
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from launcher.doctor.look_there import Torch
from launcher.rundir.durable import read_record, write_record

T = TypeVar("T")


class Stage(IntEnum):
    """Exit codes of the job's script: how far a node came."""

    NOT_THERE = 41
    NOT_WRITABLE = 42
    NO_PYTHON = 43


class TrialTask(msgspec.Struct, frozen=True):
    """What all nodes are to look at, for as long as it is there."""

    interface: str | None
    rank_python: str
    limit_s: float
    token: str


class Door(msgspec.Struct, frozen=True):
    """The ports that a node listens on, or why it does not."""

    interface: str  # nothing: the address that the queue's programs give
    address: str = ""
    ports: tuple[int, ...] = ()
    error: str = ""


class NodeGreeting(msgspec.Struct, frozen=True):
    """The first that is seen of a node."""

    node: str
    launcher: str
    python: str
    doors: tuple[Door, ...]


class TrialQuestion(msgspec.Struct, frozen=True):
    """To a node: what time is it there, and does it reach the others?"""

    others: tuple[NodeGreeting, ...]


class NodeTime(msgspec.Struct, frozen=True):
    """Its answer to the first, at once."""

    now: float


class NodeCall(msgspec.Struct, frozen=True):
    """One node's attempt to reach another."""

    caller: str
    called: str
    interface: str = ""
    address: str = ""
    port: int = 0
    took_ms: float | None = None
    error: str = ""


class NodeReport(msgspec.Struct, frozen=True):
    """The last of a node."""

    node: str
    calls: tuple[NodeCall, ...]
    torch: Torch
    gpus: int


@dataclass(frozen=True, slots=True)
class TrialFolder:
    """Where a trial's people meet: a file for each record, named by its kind and the node that it is of or for."""

    path: Path

    @property
    def log(self) -> Path:
        return self.path / "steps.log"

    def put(self, record: Any, node: str = "all") -> None:
        write_record(self.path / _name(type(record), node), record)

    def drop(self, kind: type, node: str = "all") -> None:
        (self.path / _name(kind, node)).unlink(missing_ok=True)

    def get(self, kind: type[T], node: str = "all") -> T | None:
        """A folder that is listed anew shows what others have put into it."""
        name = _name(kind, node)
        return read_record(self.path / name, kind) if name in os.listdir(self.path) else None

    def said(self) -> str:
        """By the programs on nodes."""
        return self.log.read_text(errors="replace") if self.log.exists() else ""


def _name(kind: type, node: str) -> str:
    return f"{kind.__name__}-{node}.json"


_STOPPED = re.compile(r"^(?P<task>[0-9]+): stopped (?P<node>\S+) (?P<code>[0-9]{1,3})$", re.MULTILINE)


def read_stopped(log: str) -> dict[str, tuple[int, str]]:
    """The nodes that came no further: with which exit code, and what was said there last.

    Each line of the log begins with the number of its task, as those of `srun --label`.
    """
    found = {}
    for stop in _STOPPED.finditer(log):
        said = re.findall(rf"^{stop['task']}: (?!stopped )(.*\S.*)$", log, re.MULTILINE)
        found[stop["node"]] = (int(stop["code"]), said[-1].strip() if said else "")
    return found


def launcher_version() -> str:
    """Of the package that runs."""
    # By its name: as an import, the package stands for its whole API, which is floors above.
    return str(import_module("launcher").__version__)


@dataclass(frozen=True, slots=True)
class NodeClock:
    """What a node's clock is ahead of ours by, and how exactly we know that: asking takes that long."""

    ahead_s: float
    took_s: float


@dataclass(frozen=True, slots=True)
class Expected:
    """What is on nodes if they are like this machine."""

    launcher: str
    python: str
    executable: str
    rank_python: str
    runs_root: str


@dataclass(slots=True)
class Trial:
    """A job, as far as it came."""

    job: str
    hosts: Sequence[str] = ()
    started_after_s: float | None = None  # from its submission to the first word of a node
    word: str = ""  # the queue's last one
    exit_code: int = 0
    requeue: bool | None = None
    greetings: dict[str, NodeGreeting] = field(default_factory=dict)
    clocks: dict[str, NodeClock] = field(default_factory=dict)
    reports: dict[str, NodeReport] = field(default_factory=dict)
    log: str = ""
    again: bool = False  # it was put back into the queue
    over: bool = True  # seen to have ended, after it was cancelled if need be

    @property
    def seen_on(self) -> list[str]:
        """Where all of our own was found, where that is everywhere."""
        return list(self.hosts) if self.hosts and set(self.hosts) <= self.clocks.keys() else []
