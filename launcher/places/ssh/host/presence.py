"""Show whether a run has its supervisor on this host.

There is one supervisor per run and host: it holds a socket name that the kernel frees with the last process that has
it.
"""

import contextlib
import errno
import hashlib
import os
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec

from launcher.errors import LaunchError
from launcher.places.ssh.messages import Peer
from launcher.run.attempts import attempts, newest
from launcher.run.durable import read_record, readable
from launcher.run.layout import AttemptDir, RunDir

_LEAVES_S = 45.0  # a supervisor that was not told to begin asks the others for 30 s, then exits
_DECIDES_S = 5.0
_AGAIN_S = 0.05


class HostIndex(msgspec.Struct, frozen=True):
    """This host's number in the plan and its GPUs in an attempt, recorded for a supervisor that is restarted here."""

    node: int  # its number in the plan
    gpus: tuple[str, ...]  # the GPUs that the attempt's ranks here may use
    python: str  # the launcher's interpreter that supervisors were started with


@contextlib.contextmanager
def held(run: RunDir, leaves_s: float = _LEAVES_S) -> Iterator[socket.socket]:
    """Yield the socket that holds the run's name on this host. The name stays taken until every process that inherits
    the socket has exited.

    Raise LaunchError if another supervisor has it for longer than `leaves_s`.
    """
    deadline = time.monotonic() + leaves_s
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as name:
        while not _bound(name, run):
            if time.monotonic() > deadline:
                raise LaunchError(f"{run.path.name} has its supervisor there already")
            time.sleep(_AGAIN_S)
        yield name


def is_held(run: RunDir) -> bool:
    """Return whether a supervisor of the run lives or is being started."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as asker:
        return asker.connect_ex(_name(run)) == 0


def host_index_file(attempt: AttemptDir, *, apart: bool) -> Path:
    """Return the path of this host's `HostIndex`, the record of its node number and GPUs in the attempt.

    With `apart` hosts have disks of their own, and the attempt's folder on each has one such file. Otherwise the
    folder, which hosts share, has one for each host, with a digest of the host's name in the file's name.
    """
    return attempt.host_index if apart else attempt.path / f"seat-{hashlib.sha256(_own_name()).hexdigest()[:16]}.json"


def taken(attempt: AttemptDir) -> HostIndex | None:
    """Return the record of this host's node number and GPUs in the attempt. Return None if it is damaged or there is
    none, because the host was not prepared for the attempt.
    """
    return readable(host_index_file(attempt, apart=True), HostIndex) or readable(
        host_index_file(attempt, apart=False), HostIndex
    )


def is_here(address: str) -> bool:
    """Return whether the address, an IP address or a name that is resolved here, is one of this machine's own, that is
    whether a socket can be bound to it.

    This tells hosts of the same name on one disk apart, whose records overwrite each other.
    """
    with contextlib.suppress(OSError):
        for family, kind, _, _, place in socket.getaddrinfo(address, 0, type=socket.SOCK_DGRAM):
            with contextlib.suppress(OSError), socket.socket(family, kind) as asker:
                asker.bind(place)
                return True
    return False


def began(attempt: AttemptDir) -> bool:
    """Return whether the submitter has told a supervisor of the attempt, on this host or on one with the same disk, to
    begin; the supervisor's record, or the file by which it claimed the start, shows that.
    """
    told = attempt.handle.exists() or attempt.started.exists()
    return told or any(attempt.path.glob("node-*/started"))


def begun(run: RunDir) -> tuple[AttemptDir, tuple[Peer, ...]] | None:
    """Return (the run's newest attempt that has a list of supervisors in its folder here, their addresses in the order
    of their numbers), or None if there is none. The list is written when supervisors are started.
    """
    for attempt in reversed(attempts(run)):
        if (peers := read_record(attempt.supervisors, tuple[Peer, ...])) is not None:
            return attempt, peers
    return None


def decided(run: RunDir) -> AttemptDir | None:
    """Wait until it is decided whether the run's supervisor on this host carries out the run's newest attempt: the
    submitter has told it to begin, or it has exited. Return that attempt in either case; None if the run has none here.

    Raise LaunchError if neither happens within five seconds.
    """
    deadline = time.monotonic() + _DECIDES_S
    while True:
        waits = is_held(run)  # checked first: a supervisor that is gone writes nothing later
        attempt = newest(run)
        if not waits or (attempt is not None and began(attempt)):
            return attempt
        if time.monotonic() > deadline:
            raise LaunchError(f"{run.path.name}: its supervisor stands by and waits to be told to go")
        time.sleep(_AGAIN_S)


def _bound(name: socket.socket, run: RunDir) -> bool:
    """Bind the socket to the name that stands for the run's supervisor on this host; return False if another process
    has bound it. Raise OSError if it fails otherwise.
    """
    try:
        name.bind(_name(run))
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            return False
        raise
    return True


def _name(run: RunDir) -> str:
    """Return the name of the run's abstract Unix socket: short, whatever the run's path, and different in containers
    that share a network.
    """
    whole = _own_name() + f"\0{run.path}".encode(errors="surrogateescape")
    # As older versions of the launcher name it: theirs and ours keep each other out.
    return f"\0launch-keeper/{os.getuid()}/{hashlib.sha256(whole).hexdigest()[:32]}"


def _own_name() -> bytes:
    """Return this host's name as bytes."""
    return os.uname().nodename.encode(errors="surrogateescape")
