"""Read the settings that launch passes to a rank (LAUNCH_*) and report progress back; outside of launch do nothing."""

import json
import os
import select
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from trainer.errors import BadSettings
from trainer.kill_points import KillPoints

Number = int | float
_LINE_BYTES = 4096  # what a FIFO takes in one piece
_PATIENCE_S = 2.0
_REPORT_EVERY_S = 0.05  # between two reports of nothing but the step


@dataclass(frozen=True, slots=True)
class Every:
    """An interval in steps or in seconds; without either it never ends."""

    steps: int | None = None
    seconds: float | None = None

    @classmethod
    def parse(cls, text: str, where: str = "checkpoint every") -> "Every":
        """Return the interval that `500 steps` or `90 s` names; an empty text means never.

        Raises BadSettings for other text, with `where` as the name of the setting.
        """
        if not text:
            return cls()
        number, _, unit = text.strip().partition(" ")
        try:
            value = float(number)
        except ValueError:
            value = 0.0
        if unit in ("steps", "step") and value >= 1 and value.is_integer():
            return cls(steps=int(value))
        if unit in ("s", "seconds") and 0 < value < float("inf"):
            return cls(seconds=value)
        raise BadSettings(f"{where}: expected something like '500 steps' or '90 s', got {text!r}")

    def is_due(self, step: int) -> bool:
        """Return whether the interval ends with this step; False for one in seconds, which the caller measures."""
        return self.steps is not None and step % self.steps == 0


@dataclass(frozen=True, slots=True)
class Launched:
    """The settings that launch passes to a rank in LAUNCH_* variables; all defaults outside of launch.

    `generation` counts the launches of the ranks in an attempt. `checkpoint_dir`, `checkpoint_every` and
    `checkpoint_keep` say where checkpoints go, how often, and how many are kept; the `memory_` ones are for snapshots
    in the node's memory. `disks_apart`: nodes share no disk. `checkpoint_copy_lag`: how far copies on a second disk may
    be behind. `memory_copied`: launch copies snapshots into another node's memory. `progress` and `control` are the
    pipes to and from the agent. `in_place_by_default`: the user did not ask for recovery in place, so it is used only
    if it costs next to nothing. `rank_state_dir` is the folder in memory for states that only this rank has, and
    `rank_states_copied` says that they are copied to another node. `joins`: the other ranks are in the middle of the
    training. `reserve`: this process is no rank yet and reports there that it waits. `lease_s`: how long until launch
    considers a silent node lost.
    """

    run_dir: Path | None = None
    attempt: int = 0
    generation: int = 0
    checkpoint_dir: Path | None = None
    checkpoint_every: str = ""
    checkpoint_keep: int | None = None
    disks_apart: bool = False  # each node has checkpoints on a disk of its own
    checkpoint_copy_lag: str = ""  # how far copies of checkpoints on other disks may be behind
    memory_dir: Path | None = None
    memory_every: str = ""
    memory_limit_bytes: int | None = None
    memory_copied: bool = False  # into another node's memory, by launch
    progress: Path | None = None
    control: Path | None = None  # where launch announces that ranks are to connect anew
    in_place_by_default: bool = False  # recovery in place only where it loses no step and costs next to nothing
    rank_state_dir: Path | None = None  # the folder in memory for the states that only this rank has
    joins: bool = False  # the other ranks are in the middle of the training, and have its state
    rank_states_copied: bool = False  # rank states are copied to another node, as a node may be replaced
    reserve: Path | None = None  # this process is no rank yet: where it reports that it waits
    lease_s: float = 0.0  # until launch considers a silent node lost

    @classmethod
    def from_environment(cls, environ: Mapping[str, str] = os.environ) -> "Launched":
        """Return the settings in the variables of `environ`; one that is missing has its default."""

        def path(name: str) -> Path | None:
            """Return a variable as a path, or None if it is empty."""
            return Path(environ[name]) if environ.get(name) else None

        def number(name: str) -> int | None:
            """Return a variable as a number, or None if it is none."""
            return int(environ[name]) if environ.get(name, "").isdigit() else None

        return cls(
            run_dir=path("LAUNCH_RUN_DIR"),
            attempt=number("LAUNCH_ATTEMPT") or 0,
            generation=number("LAUNCH_GENERATION") or 0,
            checkpoint_dir=path("LAUNCH_CHECKPOINT_DIR"),
            checkpoint_every=environ.get("LAUNCH_CHECKPOINT_EVERY", ""),
            checkpoint_keep=number("LAUNCH_CHECKPOINT_KEEP"),
            disks_apart=environ.get("LAUNCH_DISK") == "apart",
            checkpoint_copy_lag=environ.get("LAUNCH_CHECKPOINT_COPY_LAG", ""),
            memory_dir=path("LAUNCH_CHECKPOINT_MEMORY_DIR"),
            memory_every=environ.get("LAUNCH_CHECKPOINT_MEMORY_EVERY", ""),
            memory_limit_bytes=number("LAUNCH_CHECKPOINT_MEMORY_LIMIT"),
            memory_copied=environ.get("LAUNCH_CHECKPOINT_BUDDY") == "1",
            progress=path("LAUNCH_PROGRESS"),
            control=path("LAUNCH_CONTROL"),
            in_place_by_default=environ.get("LAUNCH_STAYS") == "auto",
            rank_state_dir=path("LAUNCH_NOTES_DIR"),
            joins=environ.get("LAUNCH_JOINS") == "1",
            rank_states_copied=environ.get("LAUNCH_NOTES_COPIED") == "1",
            reserve=path("LAUNCH_RESERVE"),
            lease_s=float(environ.get("LAUNCH_LEASE_S") or 0.0),
        )


class Wire:
    """The pipe by which this rank reports its progress to launch's agent, the process that started it.

    If there is no agent, or it has exited, training continues without reports.
    """

    _is_done: ClassVar[bool] = False  # this process has reported that its training is done

    def __init__(
        self,
        path: Path | None,
        now: Callable[[], float] = time.monotonic,
        patience_s: float = _PATIENCE_S,
        kill_points: KillPoints | None = None,
    ) -> None:
        self._fd: int | None = None
        self._kill_points = KillPoints.from_environment() if kill_points is None and path is not None else kill_points
        self._now, self._patience_s = now, patience_s
        self._next = 0.0
        if path is not None:
            try:
                # Non-blocking: an agent that does not read must not hold up a step.
                self._fd = os.open(path, os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC)
            except OSError:
                self._fd = None

    @classmethod
    def from_environment(cls, environ: Mapping[str, str] = os.environ) -> "Wire":
        """Return a Wire to the agent that LAUNCH_PROGRESS names, or one that does nothing outside of launch."""
        return cls(Launched.from_environment(environ).progress)

    @property
    def has_reader(self) -> bool:
        """Whether there is an agent that reads the reports."""
        return self._fd is not None

    def report_step(self, step: int, total_steps: int | None = None, **metrics: Number) -> None:
        """Report the current step, at most 20 times a second, as only the newest counts.

        `total_steps` is the number of steps of the whole training, None if unknown. In a run of `launch prove` that is
        to be killed after this step, report it and wait for the kill. Raises ValueError for metrics that do not fit
        into a line of 4096 bytes.
        """
        if self._fd is None:
            return
        now = self._now()
        reached = self._kill_points is not None and self._kill_points.is_reached(step)
        if reached or now >= self._next:
            self._next = now + _REPORT_EVERY_S
            total = {} if total_steps is None else {"total_steps": total_steps}
            self._send(self._patience_s if reached else 0.0, step=step, **total, **metrics)
        if reached and self._kill_points is not None:
            self._kill_points.wait()

    def report(self, **values: Number | str) -> None:
        """Report these values now, or drop them if the agent reads nothing for two seconds.

        Raises ValueError for values that do not fit into a line of 4096 bytes.
        """
        self._send(self._patience_s, **values)

    def report_done(self) -> None:
        """Report that the work is done, so that no later end of this process counts as a failure."""
        Wire._is_done = True
        self.report(done=True)

    def take_back_done(self) -> None:
        """Report that the script continues with more work after `report_done`."""
        if Wire._is_done:
            Wire._is_done = False
            self.report(done=False)

    def _send(self, patience_s: float, **values: Number | str) -> None:
        """Write one report if the agent reads within `patience_s` seconds, else drop it.

        If the pipe fails otherwise, it is closed and no more is reported. Raises ValueError for a report that is too
        long for a line.
        """
        fd = self._fd  # checkpoints are reported from a thread of their own
        if fd is None:
            return
        line = json.dumps(values).encode() + b"\n"
        if len(line) > _LINE_BYTES:
            raise ValueError(f"a report of {len(line)} bytes: expected at most {_LINE_BYTES}")
        try:
            # The pipe is full where the agent is behind. A later report of a step supersedes it.
            if select.select([], [fd], [], patience_s)[1]:
                os.write(fd, line)
        except BlockingIOError:
            return  # it was no longer empty enough for the whole line
        except OSError:
            self.close()

    def close(self) -> None:
        """Close the connection."""
        fd, self._fd = self._fd, None
        if fd is not None:
            os.close(fd)
