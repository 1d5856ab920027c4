"""Processes in reserve, with `recovery.reserve`: they start as ranks do, import, load data and build the model, and
then wait for the number of a rank. A rank that is replaced after a failure therefore runs at once. A Start is the
coordinator's order to start the ranks of one generation (a set of ranks that train together) on a node. A process can
become a rank only in a generation of the sizes, such as WORLD_SIZE, that it began with.

    fill ─► starter ─► the user's program ─► Trainer: model made, a first pass tried ─► {"waits": true}
                                                                                              │
    start of a rank ─► hand over: its variables and its log, on a FIFO beside LAUNCH_RESERVE ▼
"""

import signal
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from launcher.errors import said_by_the_system
from launcher.node.environment import sizes
from launcher.node.ranks.control import ControlPipe, control_of
from launcher.node.ranks.group import Home
from launcher.node.ranks.reaper import Death
from launcher.node.ranks.reports.logfile import LogFile
from launcher.node.ranks.start import Starter
from launcher.node.ranks.zygote_link import TellDeath
from launcher.run.identity import process_id
from launcher.run.processes import runs, set_oom_priority, signal_process
from launcher.wire.messages import Start
from launcher.wire.progress import Progress, ProgressPipe

ReserveEvent = Literal["in_reserve", "no_reserve"]
Note = Callable[[ReserveEvent, str], None]  # a line for the run's events
_SPARE_TRIES = 2  # in a generation, beyond one for each place: there may be no memory for one more


@dataclass(slots=True, eq=False)
class _Process:
    """A process in reserve: its pipes, its pid, whether it has ended, and whether it was reported as ready.

    `told_of` holds the variables (such as sizes) that it began with. `tell` is None until it becomes a rank, and then
    receives its death.
    """

    progress: Progress  # what it has reported over `pipe`
    pipe: ProgressPipe
    control: ControlPipe  # over which it gets the environment of the rank that it becomes
    told_of: Mapping[str, str]  # the variables, such as WORLD_SIZE, that it began with and that its rank must have
    pid: int = 0
    ended: bool = False
    told: bool = False  # that it is ready was reported
    tell: TellDeath | None = None  # called with its death once it is a rank; None: still in reserve

    @property
    def is_ready(self) -> bool:
        """Return whether the process lives and has reported that it waits to become a rank."""
        return self.progress.waits and self.pid != 0 and not self.ended and runs(self.pid)

    def can_be(self, environment: Mapping[str, str]) -> bool:
        """Return whether the process can become a rank with this environment: the sizes, such as WORLD_SIZE, must be
        those that it began with.
        """
        return self.told_of.items() <= environment.items()

    def close(self) -> None:
        """Close the pipes to the process, which has ended or could not be started."""
        self.pipe.close()
        self.control.close()


class Reserve:
    """The processes in reserve on one node. `note` is called with the kind and text of an event: when one is ready, and
    when the node can have none, with the reason.
    """

    def __init__(self, home: Home, note: Note) -> None:
        self._home = home
        self._note = note
        self._wanted = home.plan.spec.recovery.reserve
        self._processes: list[_Process] = []
        self._number = 0
        self._filling = False
        self._generation = 0  # in which it was filled last
        self._tries = 0  # that are left in it
        self._asked_in = 0  # the newest generation

    @property
    def pids(self) -> tuple[int, ...]:
        """Return the pids of the processes in reserve, without those of their children."""
        return tuple(one.pid for one in self._processes if one.pid)

    def is_short(self, start: Start) -> bool:
        """Return whether `fill` would start a process now for ranks like those of `start`: whether fewer processes in
        reserve can become such ranks than the spec asks for, and no process is being started.

        Each start takes a try. A generation has as many tries as the spec asks for processes, and a few more; once they
        are used up, return False.
        """
        has_tries = start.generation != self._generation or self._tries > 0
        return self._lacks(start) > 0 and has_tries and not self._filling

    async def fill(self, starter: Starter, start: Start) -> None:
        """Start reserve processes until there are as many as the spec asks for that can become ranks of the sizes in
        `start`, without waiting until they are ready; first kill those in reserve that cannot.

        In one generation at most two processes more than the spec asks for are started.
        """
        if not self.is_short(start):
            return
        if start.generation != self._generation:
            self._generation, self._tries = start.generation, self._wanted + _SPARE_TRIES
        self._filling = True
        try:
            self._end([one for one in self._processes if not one.can_be(sizes(start))])  # begun for another world
            while self._lacks(start) > 0 and self._tries > 0:
                self._tries -= 1
                await self._begin(starter, start)
        except OSError as error:
            self._give_up(said_by_the_system(error))
        finally:
            self._filling = False

    def _lacks(self, start: Start) -> int:
        """Return how many more processes must be started to have as many in reserve as the spec asks for. Only those
        count that can become ranks of the sizes in `start`.
        """
        return self._wanted - sum(one.can_be(sizes(start)) for one in self._processes)

    def close(self) -> None:
        """Kill all processes in reserve."""
        self._end(self._processes)

    def _end(self, processes: Sequence[_Process]) -> None:
        """Kill the processes, and remove them from the reserve."""
        for process in [*processes]:
            self._processes.remove(process)
            known = process_id(process.pid) if process.pid else None
            if known is not None:
                signal_process(known, signal.SIGKILL)

    def hand_over(self, environment: Mapping[str, str], log: Path, tell: TellDeath) -> int | None:
        """Make a process in reserve the rank with this environment and return its pid. Return None if no process is
        ready, or if those that are have begun with other sizes, such as WORLD_SIZE, than the environment has.

        The output of the process then goes to the file `log`, and `tell` is called with the rank's death.
        """
        process = next((one for one in self._processes if one.can_be(environment) and one.is_ready), None)
        before, self._asked_in = self._asked_in, int(environment["LAUNCH_GENERATION"])
        if process is None:
            if self._wanted and 0 < before < self._asked_in and (why := self._why_none(environment, before)):
                self._report_none(why)
            return None
        self._processes.remove(process)
        process.tell = tell
        logs = {"log": str(log), "log_before": str(self._log)}
        word = {"generation": self._asked_in, **logs, "environment": dict(environment)}
        set_oom_priority(process.pid, first=False)
        process.control.send(word, at_step_end=False)
        process.pipe.close()
        return process.pid

    def _why_none(self, environment: Mapping[str, str], before: int) -> str:
        """Return why no process in reserve can become the rank with the variables `environment` now: it is not ready,
        was begun for another number of ranks, or none was begun yet. Return "" if the reserve is empty because its
        processes have ended, which was reported as an event then.

        `before` is the newest earlier generation for which a process was asked; if the reserve was last filled before
        that one began, none was begun for it.
        """
        fitting = [one for one in self._processes if one.can_be(environment)]
        if fitting:
            late = fitting[0]
            return (
                f"process {late.pid} {'is stopped, or has ended' if late.told else 'has begun, and does not wait yet'}"
            )
        if self._processes:
            return f"process {self._processes[0].pid} was begun for another number of ranks"
        return "none is begun before each rank here has reported some steps" if self._generation < before else ""

    async def _begin(self, starter: Starter, start: Start) -> None:
        """Start one process in reserve with `starter`, which can become a rank of generations with the sizes in
        `start`; do not wait until it is ready.
        """
        self._number += 1
        fifo = self._home.attempt.reserve(self._home.node.index, self._number)
        progress, control = Progress(), ControlPipe(control_of(fifo))
        pipe = ProgressPipe(fifo, progress, lambda: self._on_report(process))
        process = _Process(progress, pipe, control, sizes(start))
        self._processes.append(process)
        environment = {**sizes(start), "LAUNCH_RESERVE": str(fifo)}
        try:
            pid = await starter.start(environment, self._log, str(fifo), lambda death: self._ended(process, death))
        except BaseException:
            self._forget(process)
            raise
        process.pid = pid
        set_oom_priority(pid, first=True)
        self._on_report(process)  # what it said before that was known

    def _on_report(self, process: _Process) -> None:
        """Send the coordinator the event that a process is ready, once the process has reported that it waits to become
        a rank; do so only once.
        """
        if process.progress.waits and process.pid and not process.ended and not process.told:
            process.told, node = True, self._home.node.index
            self._note("in_reserve", f"node {node} has process {process.pid} in reserve")

    def _ended(self, process: _Process, death: Death) -> None:
        """Handle the end of a process. If it had become a rank, pass its death to the agent, by the function `tell`
        that `hand_over` was given.

        If it was still in reserve, report that the node has no reserve in two cases: it exited by itself, as the next
        process would too; or it was killed and this generation has no try left to start another (see `fill`).
        """
        process.ended = True
        is_ours = process in self._processes
        self._forget(process)
        if process.tell is not None:
            process.tell(death)
            return
        # Read for each end, or the next killed rank would seem to be killed for memory.
        for_memory = is_ours and death.signal == signal.SIGKILL and self._home.oom.grew()
        if is_ours and death.code is not None:  # by itself: the next one would, too
            said = LogFile(self._log).tail()
            self._give_up(f"it ended with exit code {death.code}" + (f": {said[-1]}" if said else ""))
        elif is_ours and self._tries == 0:
            tries, how = self._wanted + _SPARE_TRIES, "for memory" if for_memory else f"by signal {death.signal}"
            self._give_up(f"{tries} were begun in one generation, the last was killed {how}")

    def _forget(self, process: _Process) -> None:
        """Close the pipes to the process, which has ended or could not be started, and remove it from the reserve
        unless it has become a rank.
        """
        process.close()
        if process in self._processes:
            self._processes.remove(process)

    def _give_up(self, why: str) -> None:
        """Report why the node has no reserve, and start no process in reserve until the next generation."""
        self._tries = 0
        self._report_none(why)

    def _report_none(self, why: str) -> None:
        """Report that the node has no process in reserve, and why."""
        self._note("no_reserve", f"node {self._home.node.index} has no process in reserve: {why}")

    @property
    def _log(self) -> Path:
        """Return the log of the processes in reserve."""
        return self._home.attempt.reserve_log(self._home.node.index)


class FromReserve:
    """A starter that makes a process in reserve the rank, or uses another starter if no such process is ready."""

    def __init__(self, reserve: Reserve, starter: Starter) -> None:
        self._reserve = reserve
        self._starter = starter

    @property
    def dumps_stacks(self) -> bool:
        """Return whether ranks write their stacks when they receive DUMP_SIGNAL: whether the other starter's do."""
        return self._starter.dumps_stacks

    async def start(self, environment: Mapping[str, str], log: Path, progress: str, tell: TellDeath) -> int:
        """Start one rank with these variables, from the reserve if a process in it is ready, and return its pid.

        Its output goes to `log`, its reports to the FIFO at `progress`, and `tell` is called with its death.
        """
        pid = self._reserve.hand_over(environment, log, tell)
        return await self._starter.start(environment, log, progress, tell) if pid is None else pid
