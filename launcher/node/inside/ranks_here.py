"""The ranks that run on this node, as its agent has recorded them, and what the kernel shows of them."""

import os

from launcher.errors import Refused
from launcher.node import ZYGOTE
from launcher.node.ranks.start import DUMP_SIGNAL
from launcher.run.durable import readable
from launcher.run.identity import alive
from launcher.run.layout import AttemptDir, RunDir
from launcher.run.processes import TAG, pids
from launcher.run.records import RankProcess

# The rank's alone: who else writes there speaks for it.
_WIRES = ("LAUNCH_PROGRESS", "TORCHELASTIC_ERROR_FILE")


def ranks_here(attempt: AttemptDir, node: int) -> dict[int, RankProcess]:
    """Return the live ranks of this node by number."""
    found = (readable(path, RankProcess) for path in attempt.rank_processes(node))
    return {one.rank: one for one in sorted(filter(None, found), key=lambda one: one.rank) if alive(one.process)}


def rank_here(attempt: AttemptDir, node: int, rank: int) -> RankProcess:
    """Return the process of a rank; raise Refused if it does not run on this node."""
    found = ranks_here(attempt, node).get(rank)
    if found is None:
        raise Refused(f"rank {rank} does not run on node {node} at the moment", "hint: it may be starting: try again")
    return found


def environment_of(rank: RankProcess, run: RunDir) -> dict[str, str]:
    """Return the environment with which the rank's own program began, without its pipes to the agent.

    For a forked rank the kernel shows the zygote's part of the environment under the pid of the rank or the zygote,
    unless a program has overwritten it with its title.
    """
    for pid in (rank.process.pid, *_zygotes_beside(rank.process.pid)):
        shown = _environment(pid)
        if shown.get(TAG) == str(run.path):
            whole = {**shown, **rank.environment}
            return {name: value for name, value in whole.items() if name not in _WIRES}
    raise Refused(f"rank {rank.rank}: its environment cannot be read: its program may have overwritten it")


def folder_of_rank(rank: RankProcess) -> str:
    """Return the rank's working directory."""
    try:
        return os.readlink(f"/proc/{rank.process.pid}/cwd")
    except OSError as error:
        raise Refused(f"rank {rank.rank} has just ended", "hint: it may be starting anew: try again") from error


def can_dump_stacks(pid: int) -> bool:
    """Return whether the process handles DUMP_SIGNAL; the signal would end one that does not."""
    return _mask_has_dump(_status(pid), "SigCgt")


def threads_blocking_dump(pid: int) -> set[str]:
    """Return the threads that block DUMP_SIGNAL now: those that always block it, and those that are answering it."""
    return {task for task in _tasks(pid) if _mask_has_dump(_status(pid, f"task/{task}/"), "SigBlk")}


def has_pending_dump(pid: int) -> bool:
    """Return whether DUMP_SIGNAL is pending and no thread has taken it."""
    return _mask_has_dump(_status(pid), "ShdPnd")


def _mask_has_dump(status: dict[str, str], mask: str) -> bool:
    """Return whether the signal mask `mask` in a process's status contains DUMP_SIGNAL."""
    return bool(int(status.get(mask, "0"), 16) >> (DUMP_SIGNAL - 1) & 1)


def is_stopped(pid: int) -> bool:
    """Return whether the process is stopped by a signal or a debugger, so that it answers nothing until it
    continues.
    """
    return _status(pid).get("State", "")[:1] in ("T", "t")


def _tasks(pid: int) -> list[str]:
    """Return the ids of the threads of a process, or an empty list if it has ended."""
    try:
        return os.listdir(f"/proc/{pid}/task")
    except OSError:
        return []  # it has ended


def _status(pid: int, below: str = "") -> dict[str, str]:
    """Return the fields of `/proc/PID/status`, or of the thread's file named by `below`; an empty dict if the process
    has ended.
    """
    try:
        with open(f"/proc/{pid}/{below}status") as file:
            return {name: value.strip() for name, _, value in (line.partition(":") for line in file)}
    except OSError:
        return {}  # it has ended


def _parent(pid: int) -> int:
    """Return the pid of the parent process, or 0 if the process has ended."""
    return int(_status(pid).get("PPid", "0"))


def _zygotes_beside(pid: int) -> list[int]:
    """Return the pids of the zygotes that have the same parent as process `pid`."""
    agent = _parent(pid)
    return [one for one in pids() if _parent(one) == agent and _is_zygote(one)]


def _is_zygote(pid: int) -> bool:
    """Return whether the command line of the process is that of a zygote."""
    try:
        with open(f"/proc/{pid}/cmdline", "rb") as file:
            return os.fsencode(ZYGOTE) in file.read().split(b"\0")
    except OSError:
        return False


def _environment(pid: int) -> dict[str, str]:
    """Return the environment that the kernel shows for a process, empty if it has ended."""
    try:
        with open(f"/proc/{pid}/environ", "rb") as file:
            words = file.read().split(b"\0")
    except OSError:
        return {}
    return {
        os.fsdecode(name): os.fsdecode(value) for name, sign, value in (word.partition(b"=") for word in words) if sign
    }
