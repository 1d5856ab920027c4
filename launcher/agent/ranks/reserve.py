"""Processes in reserve, with `recovery.reserve`: they have begun as ranks do, with their imports, data and model, and
wait to hear which rank they are. So a rank that is started anew after a failure is there at once.

    fill ─► starter ─► the user's program ─► Trainer: model made, a first pass tried ─► {"waits": true}
                                                                                              │
    start of a rank ─► hand over: its variables and its log, on the FIFO LAUNCH_RESERVE names ▼
"""

import signal
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from launcher.agent.environment import reserve_environment
from launcher.agent.messages import Start
from launcher.agent.processes import descendants, is_stopped, signal_process
from launcher.agent.ranks.control import ControlPipe, control_of
from launcher.agent.ranks.group import Home
from launcher.agent.ranks.reaper import Death
from launcher.agent.ranks.reports.logfile import LogFile
from launcher.agent.ranks.reports.progress import Progress, ProgressPipe
from launcher.agent.ranks.start import Starter
from launcher.agent.ranks.zygote_link import TellDeath
from launcher.errors import said_by_the_system
from launcher.rundir.identity import process_id

ReserveEvent = Literal["in_reserve", "no_reserve"]
Note = Callable[[ReserveEvent, str], None]  # a line for the run's events
_MOST_KILLED = 3  # in a generation: there may be no memory for one more


@dataclass(slots=True, eq=False)
class _Process:
    progress: Progress
    pipe: ProgressPipe
    control: ControlPipe
    generation: int  # in which it was begun
    pid: int = 0
    ended: bool = False
    told: bool = False  # that it is ready
    tell: TellDeath | None = None  # who hears of its death; None: it is in reserve

    @property
    def is_ready(self) -> bool:
        return self.progress.waits and self.pid != 0 and not self.ended and not is_stopped(self.pid)

    def close(self) -> None:
        self.pipe.close()
        self.control.close()


class Reserve:
    """The processes in reserve on one node. `note` hears of each that is ready, and why there are none any more."""

    def __init__(self, home: Home, note: Note) -> None:
        self._home = home
        self._note = note
        self._wanted = home.plan.spec.recovery.reserve
        self._processes: list[_Process] = []
        self._number = 0
        self._filling = False
        self._killed: list[int] = []  # in which generations

    @property
    def pids(self) -> tuple[int, ...]:
        """Those of its processes, and of what these have started."""
        own = [one.pid for one in self._processes if one.pid]
        return (*own, *(below for pid in own for below in descendants(pid)))

    @property
    def is_short(self) -> bool:
        return len(self._processes) < self._wanted and not self._filling

    async def fill(self, starter: Starter, start: Start) -> None:
        """Have as many as there are to be, for ranks as those of `start`."""
        if not self.is_short:
            return
        self._filling = True
        try:
            while len(self._processes) < self._wanted:
                await self._begin(starter, start)
        except OSError as error:
            self._give_up(said_by_the_system(error))
        finally:
            self._filling = False

    def hand_over(self, environment: Mapping[str, str], log: Path, tell: TellDeath) -> int | None:
        """Have one of them be this rank; gives its pid. None: nobody is ready."""
        process = next((one for one in self._processes if one.is_ready), None)
        if process is None:
            return None
        self._processes.remove(process)
        process.tell = tell
        logs = {"log": str(log), "log_before": str(self._log)}
        word = {"generation": int(environment["LAUNCH_GENERATION"]), **logs, "environment": dict(environment)}
        process.control.say(word, calm=False)
        process.pipe.close()
        return process.pid

    async def _begin(self, starter: Starter, start: Start) -> None:
        self._number += 1
        fifo = self._home.attempt.reserve(self._home.node.index, self._number)
        progress, control = Progress(), ControlPipe(control_of(fifo))
        process = _Process(
            progress, ProgressPipe(fifo, progress, lambda: self._heard(process)), control, start.generation
        )
        self._processes.append(process)
        environment = reserve_environment(start, str(fifo), str(control_of(fifo)))
        try:
            pid = await starter.start(environment, self._log, str(fifo), lambda death: self._ended(process, death))
        except BaseException:
            self._forget(process)
            raise
        process.pid = pid
        self._heard(process)  # what it said before that was known

    def _heard(self, process: _Process) -> None:
        known = process_id(process.pid) if process.pid and not process.ended else None
        if process.progress.step is not None and known is not None:
            self._give_up("its program made a step in the place of waiting: only a training by Trainer waits")
            signal_process(known, signal.SIGKILL)
        elif process.progress.waits and process.pid and not process.told:
            process.told, node = True, self._home.node.index
            self._note("in_reserve", f"node {node} has process {process.pid} in reserve")

    def _ended(self, process: _Process, death: Death) -> None:
        process.ended = True
        self._forget(process)
        if process.tell is not None:
            process.tell(death)
            return
        self._killed.append(process.generation)
        if death.code is not None:  # by itself: the next one would, too
            said = LogFile(self._log).tail()
            self._give_up(f"it ended with exit code {death.code}" + (f": {said[-1]}" if said else ""))
        elif self._killed.count(process.generation) >= _MOST_KILLED:
            self._give_up(f"{_MOST_KILLED} were killed in one generation, the last by signal {death.signal}")

    def _forget(self, process: _Process) -> None:
        process.close()
        if process in self._processes:
            self._processes.remove(process)

    def _give_up(self, why: str) -> None:
        if self._wanted:
            self._wanted = 0
            self._note("no_reserve", f"node {self._home.node.index} has no process in reserve: {why}")

    @property
    def _log(self) -> Path:
        return self._home.attempt.reserve_log(self._home.node.index)


class FromReserve:
    """A rank from the reserve; where nobody is ready there, as ever."""

    def __init__(self, reserve: Reserve, starter: Starter) -> None:
        self._reserve = reserve
        self._starter = starter

    @property
    def dumps_stacks(self) -> bool:
        return self._starter.dumps_stacks

    async def start(self, environment: Mapping[str, str], log: Path, progress: str, tell: TellDeath) -> int:
        pid = self._reserve.hand_over(environment, log, tell)
        return await self._starter.start(environment, log, progress, tell) if pid is None else pid
