"""Identify a process by host, boot, pid and start time together, because a pid alone may by now belong to another
process.
"""

import os
from functools import cache

from launcher.errors import LaunchError
from launcher.run.records import ProcessId

_STATE, _START = 0, 19  # of the fields behind the command's name in /proc/PID/stat
_DEAD = (b"Z", b"X", b"x")


@cache
def boot_id() -> str:
    """Return the kernel's id of the current boot: a pid recorded under another id refers to no process of today."""
    with open("/proc/sys/kernel/random/boot_id") as file:
        return file.read().strip()


def host() -> str:
    """Return this machine's host name."""
    return os.uname().nodename


def this_process() -> ProcessId:
    """Return the identity of this process; raise LaunchError without /proc."""
    found = process_id(os.getpid())
    if found is None:
        raise LaunchError("/proc: expected an entry for this process, got none", "hint: /proc must be mounted")
    return found


def process_id(pid: int) -> ProcessId | None:
    """Return the identity of the process that has this pid now, or None if no process has it."""
    fields = _stat(pid)
    return None if fields is None else ProcessId(host(), boot_id(), pid, int(fields[_START]))


def alive(process: ProcessId) -> bool | None:
    """Return whether the process is alive, or None if it is on another machine. A zombie counts as not alive."""
    if process.host != host():
        return None
    if process.boot_id != boot_id():
        return False
    fields = _stat(process.pid)
    return fields is not None and int(fields[_START]) == process.start_ticks and fields[_STATE] not in _DEAD


def stat_fields(pid: int) -> list[bytes]:
    """Return the fields of /proc/PID/stat from the state on, after the command's name, which may hold spaces,
    parentheses and newlines.

    Raise OSError if the process has ended or cannot be read.
    """
    with open(f"/proc/{pid}/stat", "rb", buffering=0) as file:
        return file.read().rpartition(b")")[2].split()


def _stat(pid: int) -> list[bytes] | None:
    """Return the fields of /proc/PID/stat after the command's name, or None if the process has ended."""
    if pid <= 0:
        return None
    try:
        return stat_fields(pid)
    except (FileNotFoundError, ProcessLookupError):
        return None
