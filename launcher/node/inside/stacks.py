"""Have ranks write their Python stacks into their logs, and read them there."""

import time
from collections.abc import Callable, Iterator
from pathlib import Path

from launcher.coordinator.tracebacks import stacks_in
from launcher.errors import said_by_the_system
from launcher.node.inside.ranks_here import can_dump_stacks, has_pending_dump, is_stopped, threads_blocking_dump
from launcher.node.inside.visit_messages import RankStacks
from launcher.node.ranks.start import DUMP_SIGNAL
from launcher.run.layout import RunDir
from launcher.run.processes import signal_process
from launcher.run.records import RankProcess

_BOUND_S = 15.0
_LOOK_S = 0.01
_MOST_BYTES = 1 << 20
_MOST_LINES, _LONGEST_LINE = 10_000, 2000


def stacks_of(rank: RankProcess, run: RunDir, clock: Callable[[], float] = time.monotonic) -> RankStacks:
    """Return the rank's stacks, or why they cannot be read."""
    pid = rank.process.pid
    if problem := _cannot(pid):
        return RankStacks(rank.rank, pid, problem=problem)
    log = run.path / rank.log
    try:
        before, deaf = log.stat().st_size, threads_blocking_dump(pid)
        if not signal_process(rank.process, DUMP_SIGNAL):
            return RankStacks(rank.rank, pid, problem="has just ended")
        until = clock() + _BOUND_S
        while has_pending_dump(pid) or threads_blocking_dump(pid) - deaf:
            if clock() >= until:
                return RankStacks(rank.rank, pid, problem=f"did not answer within {_BOUND_S:g} s")
            time.sleep(_LOOK_S)
        lines = stacks_in([*_written(log, before)])
    except OSError as error:
        return RankStacks(rank.rank, pid, problem=said_by_the_system(error))
    problem = "" if lines else "wrote nothing into its log: its stderr leads somewhere else"
    return RankStacks(rank.rank, pid, tuple(line[:_LONGEST_LINE] for line in lines[:_MOST_LINES]), problem)


def _cannot(pid: int) -> str:
    """Return why the process cannot be asked for its stacks, or "" if it can."""
    if is_stopped(pid):
        return "is stopped (SIGSTOP, or a debugger): it answers only once it continues"
    if not can_dump_stacks(pid):
        return "answers with no Python stacks: it is another program, or has just been started"
    return ""


def _written(log: Path, since: int) -> Iterator[str]:
    """Yield the lines that the log has gained since it had this size."""
    with log.open("rb") as file:
        file.seek(since)
        yield from file.read(_MOST_BYTES).decode(errors="replace").splitlines()
