"""The ranks of one node in one generation (one set of ranks that train together): start them, watch them, and end every
process that they started. A zygote is a process that has imported torch and forks ranks. A Start is the coordinator's
order to start the ranks of one generation here. Processes in reserve have started the user's program and wait to become
ranks.
"""

import asyncio
import contextlib
import os
import signal
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Protocol

from msgspec.structs import replace

from launcher.clock import WakingClock
from launcher.coordinator.classify import classify, failed, finished
from launcher.coordinator.tracebacks import last_exception, likeliest, main_stack, read_error_file
from launcher.errors import Exit
from launcher.node.environment import hot_variables, rank_environment, role_rank_variables
from launcher.node.ranks.control import ControlPipe, control_of
from launcher.node.ranks.looking import NO_ANSWER, Subject, look_at, times_of
from launcher.node.ranks.native import with_native
from launcher.node.ranks.nccl_ras import ADDRESS, with_nccl
from launcher.node.ranks.reaper import Death
from launcher.node.ranks.reports.logfile import LogFile, WriteBehind
from launcher.node.ranks.reports.metrics_file import MetricsFile
from launcher.node.ranks.reports.oom import OomCounter
from launcher.node.ranks.start import DUMP_SIGNAL, Starter
from launcher.node.ranks.zygote_link import OfferedZygote
from launcher.plan.model import NodePlan, Plan
from launcher.run.code.left_out import left_out
from launcher.run.durable import append_line, make_dir, write_record
from launcher.run.hangs import RankLook, RankTimes
from launcher.run.identity import process_id
from launcher.run.layout import AttemptDir, RunDir
from launcher.run.processes import end_all, is_stopped_by_signal, orphans, signal_process
from launcher.run.records import ProcessId, RankExit, RankProcess
from launcher.states import Cause
from launcher.wire.messages import ContinueInPlace, Exited, RankHeartbeat, Start
from launcher.wire.progress import Progress, ProgressPipe

_DUMP_BOUND_S = 3.0  # for hung ranks to write their stacks
_DUMP_QUIET_S = 0.2
_LAST_EXITS_S = 5.0
_FIRST_STEPS = 3
_LONGEST_SAID = 300
CANNOT_START = 125  # as in zygote.py
Pids = Callable[[], Collection[int]]  # now


@dataclass(frozen=True, slots=True)
class Home:
    """The run, attempt and node for which an agent works.

    `offered` is a zygote whose imports are done, `notes` and `snapshots` are folders in memory for recovery. `gate` is
    a socket that the agent passes to its zygote's standby, a process with all imports done. If the agent dies, the
    supervisor sends the standby new arguments over the socket, with which it becomes the node's next agent. Each of
    these four is None if not used.
    """

    plan: Plan
    run: RunDir
    attempt: AttemptDir
    node: NodePlan
    environment: Mapping[str, str]  # that all processes of the node share
    offered: OfferedZygote | None = None
    notes: Path | None = None  # with recovery.mode hot: the folder in memory for what ranks record at each step
    snapshots: Path | None = None  # the folder in memory for step snapshots
    gate: int | None = None  # the descriptor over which the node's next agent would receive its arguments
    oom: OomCounter = field(default_factory=OomCounter)  # counts processes that were killed for memory

    @property
    def hot(self) -> bool:
        """Return whether surviving ranks may keep their processes when another rank is replaced: the plan allows it, as
        with `recovery.mode` hot, and the node has the folder in memory that this needs.
        """
        return self.notes is not None

    @property
    def workdir(self) -> Path:
        """Return the folder in which ranks start."""
        return self.run.path / self.plan.workdir


class Listener(Protocol):
    """Callbacks of the agent, which the group of ranks calls when a rank starts, reports or ends."""

    def begun(self, rank: int) -> None:
        """Called when the process of the rank with this number has been started."""

    def on_report(self) -> None:
        """Called when a rank has reported something."""

    def on_last_report(self) -> None:
        """Called when a rank has ended, before `ended`, to send its last report to the coordinator, which must get it
        before the end.
        """

    def ended(self, exited: Exited) -> None:
        """Called when a rank has ended, with the message about it for the coordinator."""


@dataclass(slots=True)
class _Rank:
    """A rank of this node: its process, its pipes, its log, and how it ended. `number` is its rank among all ranks,
    `local` its place on this node.

    `hung` means that the coordinator found it hung, `dumps` that it writes its stacks because the agent asked,
    `replaced` that another process takes its place.
    """

    number: int
    local: int
    log: LogFile
    progress: Progress
    active_at: float  # time of its last report or output, by the agent's clock
    started_at: float  # Unix time
    pipe: ProgressPipe = field(init=False)
    control: ControlPipe | None = None  # with recovery.mode hot
    pid: int = 0  # 0: not started yet
    process: ProcessId | None = None
    hung: bool = False
    dumps: bool = False  # it writes its stacks because the agent asked, which is not activity
    replaced: bool = False  # another process takes its place
    exit: RankExit | None = None  # None while it runs
    ended: asyncio.Event = field(default_factory=asyncio.Event)

    def close(self) -> None:
        """Close the pipes to the rank."""
        self.pipe.close()
        if self.control is not None:
            self.control.close()


class RankGroup:
    """The ranks of one generation on this node. `listener` is called when a rank starts, reports or ends."""

    def __init__(
        self, home: Home, start: Start, starter: Starter, listener: "Listener", dump_bound_s: float = _DUMP_BOUND_S
    ) -> None:
        self.generation = start.generation
        self._home = home
        self.start = start
        self._starter = starter
        self._listener, self._dump_bound_s = listener, dump_bound_s
        self._stopping = False
        self._closed = False
        self._clock = WakingClock()  # who stood still together with us was not idle meanwhile
        home.oom.grew()  # what was before is of no rank of these
        self._metrics = MetricsFile(home.run.reported(home.attempt.number, home.node.index), start.generation)
        self._behind = WriteBehind()
        self._ranks: list[_Rank] = []
        # Local ranks whose peers have the state of the training.
        self._joins = {*range(start.local_world_size)} if start.joins else set[int]()

    async def begin(self) -> tuple[int, ...]:
        """Start all ranks and return their pids in the order of their local numbers. Raise OSError if one cannot be
        started; the others stay started, and `listener` is called for them too.
        """
        make_dir(self._home.run.generation_logs(self._home.attempt.number, self.generation))
        for local in range(self.start.local_world_size):
            self._ranks.append(self._prepare(local))
        begun = await asyncio.gather(*(self._begin(rank) for rank in self._ranks), return_exceptions=True)
        for error in begun:
            if error is not None:
                raise error  # the ends of those that have started are handled all the same
        return tuple(rank.pid for rank in self._ranks)

    async def continue_in_place(
        self, message: ContinueInPlace, starter: Starter, keep: Collection[int], waiting: Pids
    ) -> tuple[int, ...]:
        """Begin the generation in `message`: its `survivors` keep their processes and are informed; the other ranks of
        this node are ended if they live, and started anew by `starter`. Return the pids of all ranks in the order of
        their local numbers.

        All processes below the agent but the survivors' are ended first, except those with pids in `keep`, such as
        zygote and watchdog, and those in reserve, whose pids `waiting` returns. Raise OSError if a rank cannot be
        started.
        """
        start = message.start
        run, node = self._home.run, self._home.node.index
        metrics, self._metrics = (
            self._metrics,
            MetricsFile(run.reported(self._home.attempt.number, node), start.generation),
        )
        self.generation, self.start, self._starter = start.generation, start, starter
        make_dir(run.generation_logs(self._home.attempt.number, self.generation))
        living: list[int] = []
        for rank in self._ranks:
            rank.number = start.first_rank + rank.local
            if rank.number not in message.survivors:
                rank.replaced = True  # it may live, if it was yet to meet the others
            elif rank.exit is not None:  # it ended a moment ago, and was reported for the generation before
                end = replace(rank.exit, generation=start.generation, rank=rank.number)
                self._report_end(end)
            else:
                living.append(rank.pid)
                self._move_to_generation(rank, message)
        await asyncio.to_thread(end_all, lambda: _orphans_left([*living, *waiting()], keep))
        await asyncio.to_thread(metrics.close)
        new = [rank for rank in self._ranks if rank.replaced]
        await asyncio.gather(*(rank.ended.wait() for rank in new))  # else it would clear away the pipes of the next one
        self._joins |= {rank.local for rank in new}
        new = [self._prepare(rank.local) for rank in new]
        for rank in new:
            self._ranks[rank.local] = rank
        begun = await asyncio.gather(*(self._begin(rank) for rank in new), return_exceptions=True)
        for error in begun:
            if error is not None:
                raise error
        return tuple(rank.pid for rank in self._ranks)

    def _move_to_generation(self, rank: _Rank, message: ContinueInPlace) -> None:
        """Send a surviving rank its new generation, in which it writes to another log."""
        before = str(rank.log.path)
        path = self._home.run.rank_log(self._home.attempt.number, self.generation, rank.number)
        rank.log = LogFile(path, self._behind)
        rank.progress.go_on()
        environment = self._environment(rank)
        self._note_process(rank, environment)
        if rank.control is not None:
            logs = {"log": str(rank.log.path), "log_before": before}
            said = {"generation": self.generation, **logs, "environment": environment}
            rank.control.send(said, at_step_end=message.at_step_end)

    def _prepare(self, local: int) -> _Rank:
        """Return the rank with local number `local`, not started yet, with open pipes: one for its reports and, with
        `recovery.mode` hot, those for messages to it.
        """
        number = self.start.first_rank + local
        log = LogFile(self._home.run.rank_log(self._home.attempt.number, self.generation, number), self._behind)
        fifo = self._home.attempt.progress(self._home.node.index, local)
        progress = Progress(partial(self._add_metrics, local))
        rank = _Rank(number, local, log, progress, active_at=self._clock.now(), started_at=time.time())
        self._error_file(rank).unlink(missing_ok=True)
        rank.pipe = ProgressPipe(fifo, rank.progress, lambda: self._on_report(rank))
        if self._home.hot:
            rank.control = ControlPipe(control_of(fifo))
        return rank

    def _add_metrics(self, local: int, step: int, values: Mapping[str, float]) -> None:
        """Add `values`, metrics that the rank with the local number `local` has reported at `step`, to the metrics
        file.
        """
        self._metrics.add(self.start.first_rank + local, step, values)

    def _environment(self, rank: _Rank) -> dict[str, str]:
        """Return the variables that a rank gets beyond those of all its node's ranks, such as RANK and the path of the
        named pipe through which it reports its progress.
        """
        fifo = self._home.attempt.progress(self._home.node.index, rank.local)
        environment = rank_environment(self.start, rank.local, str(fifo), str(self._error_file(rank)))
        environment |= role_rank_variables(self._home.plan, rank.number)
        if self._home.notes is not None:
            joins = rank.local in self._joins
            environment |= hot_variables(self._home.plan, control_of(fifo), self._home.notes, joins=joins)
        return environment

    async def _begin(self, rank: _Rank) -> None:
        """Start the process of a rank, write its pid and environment for `launch exec` into the run directory, and
        notify the listener.
        """
        fifo = str(self._home.attempt.progress(self._home.node.index, rank.local))
        environment = self._environment(rank)
        rank.pid = await self._starter.start(environment, rank.log.path, fifo, lambda death: self._ended(rank, death))
        rank.process = process_id(rank.pid)
        self._note_process(rank, environment)
        self._listener.begun(rank.number)

    def _note_process(self, rank: _Rank, environment: dict[str, str]) -> None:
        """Record the rank's process and environment in the background, for `launch exec` and other commands."""
        if rank.process is not None:
            found = RankProcess(rank.number, self.generation, rank.process, environment, self._log_of(rank))
            place = self._home.attempt.rank_process(self._home.node.index, rank.local)
            self._behind.do(lambda: write_record(place, found, fsync=False))

    def _log_of(self, rank: _Rank) -> str:
        """Return the path of the rank's log relative to the run directory."""
        return str(rank.log.path.relative_to(self._home.run.path))

    def _error_file(self, rank: _Rank) -> Path:
        """Return the path of the file in which torch's `@record` writes the rank's exception."""
        return self._home.attempt.error_file(self._home.node.index, rank.local)

    def heartbeats(self) -> tuple[RankHeartbeat, ...]:
        """Return for the agent's heartbeat what each live rank last reported, and for how long it has been idle. A rank
        whose log has grown is not idle, unless it writes stacks that the agent asked for.
        """
        return tuple(self._heartbeat(rank, self._clock.now()) for rank in self._ranks if not rank.ended.is_set())

    def _heartbeat(self, rank: _Rank, now: float) -> RankHeartbeat:
        """Return the part of the heartbeat that is about this rank, at time `now` by the agent's clock.

        If the rank's log has grown since the last call, note that the rank was active.
        """
        if rank.log.grew() and not rank.dumps:
            rank.active_at = now
        progress = rank.progress
        return RankHeartbeat(
            rank=rank.number,
            idle_s=round(now - rank.active_at, 3),
            reported=progress.reported,
            frozen=is_stopped_by_signal(rank.pid),
            step=progress.step,
            total_steps=progress.total_steps,
            checkpoint=progress.checkpoint,
            metrics=progress.metrics,
            fingerprint=progress.fingerprint,
            not_finite=progress.not_finite,
            malformed=progress.dropped_lines,
            can_continue=None if progress.can_continue is None or not self._home.hot else progress.can_continue > 0,
            breakpoint=progress.breakpoint,
            address=progress.address,
            resizes=progress.resizes,
            goes_back=progress.goes_back,
            waits=progress.waits,
            slow=progress.slow,
            went_back=progress.went_back,
        )

    @property
    def pids(self) -> dict[int, int]:
        """Return the pid of each live rank by its rank number."""
        return {rank.number: rank.pid for rank in self._ranks if rank.pid and not rank.ended.is_set()}

    async def look(self) -> list[RankLook]:
        """Return what each live rank is doing, such as its stack and pending collectives. A rank that does not answer
        in time is described from outside (by /proc, a stack from faulthandler), with the reason in `problem`.
        """
        looks = await asyncio.to_thread(look_at, self._subjects())
        by_number = {rank.number: rank for rank in self._ranks}
        looks = await asyncio.gather(*(self._with_stack(by_number[look.rank], look) for look in looks))
        looks = await asyncio.to_thread(with_native, looks)
        return await asyncio.to_thread(with_nccl, looks, self._home.environment.get("NCCL_RAS_ADDR", ADDRESS))

    async def entered(self) -> dict[int, RankTimes]:
        """Ask each live rank when it entered its newest collectives, and return the answers by rank number; a rank that
        does not answer is left out.
        """
        return await asyncio.to_thread(times_of, self._subjects())

    def _subjects(self) -> list[Subject]:
        """Return what is needed to inspect each live rank, such as its pid, its named pipe and its newest step."""
        now, node = self._clock.now(), self._home.node.index
        return [
            Subject(
                rank.number,
                node,
                rank.pid,
                self._home.attempt.progress(node, rank.local),
                rank.progress.step,
                now - rank.active_at,
            )
            for rank in self._ranks
            if rank.pid and not rank.ended.is_set()
        ]

    async def _with_stack(self, rank: _Rank, look: RankLook) -> RankLook:
        """Return `look` with a stack from faulthandler, if the rank could not answer because native code holds the GIL;
        else return it as it is.
        """
        if look.problem != NO_ANSWER or look.state in ("T", "t") or rank.process is None:
            return look
        before, rank.dumps = rank.log.bytes_now(), True  # which is no sign of life
        if self._starter.dumps_stacks:
            signal_process(rank.process, DUMP_SIGNAL)
        await self._wait_for_dumps([rank], {rank.number: before})
        rank.log.grew()
        rank.dumps = False
        return replace(look, stack=main_stack(rank.log.since(before)))

    @property
    def checkpoint(self) -> int | None:
        """Return the step of the newest checkpoint that one of these ranks has reported as committed, or None if none
        has reported any.
        """
        return max((one for rank in self._ranks if (one := rank.progress.checkpoint) is not None), default=None)

    @property
    def remembered(self) -> int | None:
        """Return the step of the newest snapshot in memory that one of these ranks has reported, or None if none has
        reported any.
        """
        return max((one for rank in self._ranks if (one := rank.progress.remembered) is not None), default=None)

    @property
    def suspects(self) -> list[int]:
        """Return the local numbers of the ranks whose failure may come from a faulty device: those that hung, or failed
        before the agent asked them to end, and not in communication with other ranks.
        """
        return [rank.local for rank in self._ranks if rank.exit is not None and _is_suspect(rank.exit)]

    @property
    def is_steady(self) -> bool:
        """Return whether every rank lives and has made three steps in this generation, so that starting further
        processes here does not delay its beginning.
        """
        return all(rank.progress.steps >= _FIRST_STEPS and not rank.ended.is_set() for rank in self._ranks)

    @property
    def over(self) -> bool:
        """Return whether every rank has ended and its end was reported."""
        return all(rank.ended.is_set() for rank in self._ranks)

    def _on_report(self, rank: _Rank) -> None:
        """Record that the rank is active now, and call the listener."""
        rank.active_at = self._clock.now()
        self._listener.on_report()

    def _ended(self, rank: _Rank, death: Death) -> None:
        """Handle the death of a rank's process: report its end, unless another process takes the rank's place
        (`rank.replaced`). After the end of the last rank, close the group's files.
        """
        rank.close()
        rank.log.grew()
        failed = death.status != 0 and not rank.progress.done
        tail = rank.log.tail() if failed else ()
        self._listener.on_last_report()
        rank.ended.set()
        if rank.replaced:
            return
        rank.exit = self._exit_record(rank, death, tail)
        self._report_end(rank.exit, tail)
        if self.over:
            self._metrics.close()
            self._behind.close()

    def _report_end(self, end: RankExit, tail: tuple[str, ...] = ()) -> None:
        """Report the end of a rank to the coordinator, with the last lines of its log (`tail`) if it failed.

        The end of a rank that finished is recorded on this disk as well, in case no other process survives to record
        it.
        """
        node = self._home.node.index
        if finished(end):
            # Not synced: it is of use only for as long as this machine is up.
            self._behind.do(lambda: append_line(self._home.attempt.node_exits(node), end, fsync=False))
        self._listener.ended(Exited(node, end, tail))

    def _exit_record(self, rank: _Rank, death: Death, tail: tuple[str, ...]) -> RankExit:
        """Return the record of how a rank ended: code, signal, exception, and the evidence in `tail`, the last lines of
        its log.
        """
        told = likeliest(rank.progress.exception, read_error_file(self._error_file(rank)))
        exception = told or last_exception(tail)
        failed_to_start = rank.progress.start_failed if death.code == CANNOT_START else ""
        return RankExit(
            generation=self.generation,
            rank=rank.number,
            local_rank=rank.local,
            node=self._home.node.index,
            pid=rank.pid,
            code=death.code,
            signal=death.signal,
            done=rank.progress.done,
            stopping=self._stopping,
            asked=rank.progress.asked_to_stop,
            left=rank.progress.called_exit,
            said=next((line.strip() for line in reversed(tail) if line.strip()), "")[:_LONGEST_SAID],
            not_started=failed_to_start,
            error=exception.line or None if exception else None,
            where=exception.where or None if exception else None,
            left_out=self._left_out(exception.line) if exception else "",
            raised=exception.raised if exception else (),
            failed_rank=exception.failed_rank if exception else None,
            oom=death.signal == signal.SIGKILL and not self._stopping and self._home.oom.grew(),
            hung=rank.hung,
            fenced=death.code == Exit.FENCED and self._can_be_fenced(),
            peak_memory_bytes=death.peak_memory_bytes,
            started_at=rank.started_at,
            ended_at=time.time(),
            log=self._log_of(rank),
        )

    def _left_out(self, said: str) -> str:
        """Return the name of the file that the rank did not find because the code snapshot leaves it out, judged by
        `said`, the text of its exception. Return "" if the rank failed for another reason, or if the nodes share no
        disk, because the project is then not here to be compared with the snapshot.
        """
        with contextlib.suppress(OSError, ValueError):
            plan = self._home.plan
            return "" if plan.disks_apart else left_out(said, plan, self._home.run.path)
        return ""

    def _can_be_fenced(self) -> bool:
        """Return whether a rank's exit code for "fenced" (ended because another attempt took over the run) can have
        that meaning: the run's checkpoint directory has the file that names the attempt in charge.

        Other programs, curl among them, use the same code.
        """
        from trainer.checkpoint_files.layout import FENCE  # late: only where a rank left with that code

        return os.path.lexists(self._home.run.path / self._home.plan.spec.checkpoint.dir / FENCE)

    async def stop(self, grace_s: float, hung: Collection[int], keep: Collection[int], waiting: Pids = tuple) -> None:
        """End every process of this generation, and everything that it started.

        Ranks in `hung` (by number) write their stacks first; all ranks get `grace_s` seconds after SIGTERM. Two kinds
        of processes are left alone: those with pids in `keep`, whose descendants are ended all the same, and those that
        `waiting` returns when the rest is killed, such as processes in reserve.
        """
        self._stopping = True
        if hung:
            await self._dump([rank for rank in self._ranks if rank.number in hung and not rank.ended.is_set()])
        if grace_s > 0:
            # The rank process alone: DataLoader workers that die first would make its last checkpoint fail.
            for rank in self._ranks:
                if rank.process is not None and not rank.ended.is_set():
                    signal_process(rank.process, signal.SIGTERM)
            await self.wait(grace_s)
        if self._closed:
            return  # by another stop, which was quicker: what runs now is not ours to end
        await asyncio.to_thread(end_all, lambda: _orphans_left(waiting(), keep))
        await self.wait(_LAST_EXITS_S)

    async def wait(self, timeout_s: float) -> bool:
        """Wait until every rank has ended and its end was reported; return False if that takes longer than
        `timeout_s`.
        """
        waits = [asyncio.create_task(rank.ended.wait()) for rank in self._ranks if rank.pid]
        if not waits:
            return True
        _, late = await asyncio.wait(waits, timeout=timeout_s)
        for task in late:
            task.cancel()
        return not late

    def close(self) -> None:
        """Close the pipes of ranks whose end was not observed, and write to disk what is still queued: metrics, the
        times of log lines, and records of ranks.
        """
        self._closed = True
        for rank in self._ranks:
            if not rank.ended.is_set():
                rank.close()
        self._metrics.close()
        self._behind.close()

    async def _dump(self, ranks: list[_Rank]) -> None:
        """Make the ranks write their Python stacks into their logs by a signal, and mark them as hung, which their end
        reports. Wait until the logs stop growing, up to a time limit.

        No stacks are written if ranks of this start have no handler for the signal (`dumps_stacks` is False).
        """
        before = {rank.number: rank.log.bytes_now() for rank in ranks}
        for rank in ranks:
            rank.hung = True
            if rank.process is not None and self._starter.dumps_stacks:
                signal_process(rank.process, DUMP_SIGNAL)
                signal_process(rank.process, signal.SIGCONT)
        if self._starter.dumps_stacks:
            await self._wait_for_dumps(ranks, before)

    async def _wait_for_dumps(self, ranks: list[_Rank], before: Mapping[int, int]) -> None:
        """Wait until the log of each rank that still runs has grown beyond its size in `before` (by rank number) and no
        log grows any more, because the stacks are written; or until the time limit for stacks has passed.
        """
        last, deadline = before, time.monotonic() + self._dump_bound_s
        while time.monotonic() < deadline:
            await asyncio.sleep(_DUMP_QUIET_S)
            sizes = {rank.number: rank.log.bytes_now() for rank in ranks}
            awaited = [rank for rank in ranks if sizes[rank.number] == before[rank.number] and not rank.ended.is_set()]
            if sizes == last and not awaited:
                return
            last = sizes


def _orphans_left(trees: Collection[int], keep: Collection[int]) -> list[int]:
    """Return the pids of this process's descendants that are outside the process trees with the roots `trees`, without
    those in `keep`.
    """
    return [pid for pid in orphans(os.getpid(), trees) if pid not in keep]


def _is_suspect(end: RankExit) -> bool:
    """Return whether the rank's device may be faulty: the rank hung, or failed before its end was asked for, and its
    failure is not one of communication with other ranks.
    """
    by_itself = end.hung or not end.stopping
    return by_itself and failed(end) and classify(end) is not Cause.COMMUNICATION
