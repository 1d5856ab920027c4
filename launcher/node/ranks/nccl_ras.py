"""Read the report of NCCL's RAS threads: which processes of all nodes answer, and which communicators wait for which
ranks. A look (RankLook) is the record of what one rank was doing when it was inspected.
"""

import os
import socket
import time
from collections.abc import Iterable, Sequence
from pathlib import Path

from msgspec.structs import replace

from launcher.run.hangs import MOST_THREAD_LINES, RankLook

BOUND_S = 2.0
ADDRESS = "localhost:28028"  # of the first process of each node; NCCL_RAS_ADDR names another
_MOST_BYTES = 1 << 20
_LONGEST_LINE = 200
_LISTENS = "0A"


def with_nccl(looks: Sequence[RankLook], address: str = ADDRESS, bound_s: float = BOUND_S) -> list[RankLook]:
    """Return the looks, with NCCL's report added to one rank of this node; take at most `bound_s` seconds. `address`,
    HOST:PORT, is where the report is served.

    One report covers all ranks, so only the node of rank 0 reads it. Nothing is added where NCCL has no RAS (before
    2.24), or where the address belongs to a process that is none of these ranks.
    """
    host, _, port = address.rpartition(":")
    if not port.isdecimal() or all(look.rank for look in looks):
        return list(looks)
    inodes = set(_listening(int(port)))
    holder = next((look.rank for look in looks if inodes and inodes & _sockets_of(look.pid)), None)
    if holder is None:
        return list(looks)
    lines = _report(host, int(port), bound_s)
    return [replace(look, nccl=lines) if look.rank == holder else look for look in looks]


def _report(host: str, port: int, bound_s: float) -> tuple[str, ...]:
    """Ask the RAS thread that listens at `host` and `port` for its report, and return the lines that came within
    `bound_s` seconds, or one line that says why there is none. Long lines and long reports are cut.
    """
    until, said = time.monotonic() + bound_s, b""
    try:
        with socket.create_connection((host, port), timeout=bound_s) as link:
            link.sendall(f"TIMEOUT {max(1, int(bound_s) - 1)}\nVERBOSE STATUS\n".encode())
            while len(said) < _MOST_BYTES and (left_s := until - time.monotonic()) > 0:
                link.settimeout(left_s)
                if not (piece := link.recv(1 << 16)):
                    break
                said += piece
    except OSError as error:
        if not said:
            return (f"NCCL's RAS: {error.strerror or error}",)
    lines = [line.rstrip()[:_LONGEST_LINE] for line in said.decode(errors="replace").splitlines()]
    return tuple(line for line in lines if line and line != "OK")[:MOST_THREAD_LINES]


def _listening(port: int) -> Iterable[str]:
    """Return the inodes of the sockets that listen on a port of this machine, in any address family."""
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        try:
            rows = [row.split() for row in Path(table).read_text().splitlines()[1:]]
        except OSError:
            continue  # a machine without IPv6
        yield from (row[9] for row in rows if row[3] == _LISTENS and int(row[1].rpartition(":")[2], 16) == port)


def _sockets_of(pid: int) -> set[str]:
    """Return the inodes of a process's sockets, or an empty set once it has ended."""
    found = set[str]()
    try:
        for entry in os.scandir(f"/proc/{pid}/fd"):
            target = os.readlink(entry.path)
            if target.startswith("socket:["):
                found.add(target[8:-1])
    except OSError:
        pass  # it has ended, or closes this very file
    return found
