"""Naming a process for good: host, boot, pid and start time together; a pid alone may be a stranger's by now."""

import os
import socket
from functools import cache
from pathlib import Path

from launcher.rundir.records import ProcessId

_STATE, _START = 0, 19  # of the fields behind the command's name in /proc/PID/stat


@cache
def boot_id() -> str:
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def host() -> str:
    return socket.gethostname()


def this_process() -> ProcessId:
    found = process_id(os.getpid())
    assert found is not None
    return found


def process_id(pid: int) -> ProcessId | None:
    """Who has this pid now; None where nobody has."""
    fields = _stat(pid)
    return None if fields is None else ProcessId(host(), boot_id(), pid, int(fields[_START]))


def alive(process: ProcessId) -> bool | None:
    """True or False where this machine can tell, None where the process is another machine's."""
    if process.host != host():
        return None
    if process.boot_id != boot_id():
        return False
    fields = _stat(process.pid)
    return fields is not None and int(fields[_START]) == process.start_ticks and fields[_STATE] not in (b"Z", b"X")


def _stat(pid: int) -> list[bytes] | None:
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            return file.read().rpartition(b")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return None
