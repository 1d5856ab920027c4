"""What a trial's people write for each other into their folder, and what is known when it is over. Pure data."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from importlib import import_module
from pathlib import Path

import msgspec

from launcher.doctor.look_there import Torch


class Stage(IntEnum):
    """Exit codes of the job's script: how far a node came."""

    NOT_THERE = 41
    NOT_WRITABLE = 42
    NO_PYTHON = 43


class Asked(msgspec.Struct, frozen=True):
    """asked.json: what nodes are to look at."""

    interface: str | None
    rank_python: str
    limit_s: float


class Door(msgspec.Struct, frozen=True):
    """A port that a node listens on, or why it does not."""

    interface: str = ""  # nothing: the address that Slurm gives
    address: str = ""
    port: int = 0
    error: str = ""


class Greeting(msgspec.Struct, frozen=True):
    """greeting-NODE.json: the first that is seen of a node."""

    node: str
    launcher: str
    python: str
    doors: tuple[Door, ...]


class Call(msgspec.Struct, frozen=True):
    """One node's attempt to reach a port of another."""

    caller: str
    called: str
    interface: str = ""
    address: str = ""
    port: int = 0
    took_ms: float | None = None
    error: str = ""


class Report(msgspec.Struct, frozen=True):
    """report-NODE.json: the last."""

    node: str
    calls: tuple[Call, ...]
    torch: Torch
    gpus: int


@dataclass(frozen=True, slots=True)
class Folder:
    """Where a trial's people meet."""

    path: Path

    @property
    def asked(self) -> Path:
        return self.path / "asked.json"

    @property
    def log(self) -> Path:
        """What srun and the programs on nodes say."""
        return self.path / "steps.log"

    def greeting(self, node: str) -> Path:
        return self.path / f"greeting-{node}.json"

    def question(self, node: str) -> Path:
        """To this node: what time is it?"""
        return self.path / f"question-{node}.json"

    def time(self, node: str) -> Path:
        return self.path / f"time-{node}.json"

    def calls(self, node: str) -> Path:
        return self.path / f"calls-{node}.json"

    def report(self, node: str) -> Path:
        return self.path / f"report-{node}.json"


_STOPPED = re.compile(r"^(?P<task>[0-9]+): stopped (?P<node>\S+) (?P<code>[0-9]{1,3})$", re.MULTILINE)


def read_stopped(log: str) -> dict[str, tuple[int, str]]:
    """The nodes that came no further: with which exit code, and what was said there last. `log`: with srun --label."""
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
class Clock:
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


@dataclass(frozen=True, slots=True)
class Trial:
    """A job that has been carried out, as far as it came."""

    job: str
    hosts: tuple[str, ...]
    started_after_s: float | None  # from sbatch to the first word of a node
    word: str  # Slurm's last one
    exit_code: int
    requeue: bool | None
    greetings: Mapping[str, Greeting] = field(default_factory=dict)
    clocks: Mapping[str, Clock] = field(default_factory=dict)
    reports: Mapping[str, Report] = field(default_factory=dict)
    log: str = ""
    again: bool = False  # Slurm has put it back into the queue
    over: bool = True  # seen to have ended, after it was cancelled if need be

    @property
    def seen_on(self) -> list[str]:
        """Where all of our own was found, where that is everywhere."""
        return list(self.hosts) if self.hosts and set(self.hosts) <= self.clocks.keys() else []
