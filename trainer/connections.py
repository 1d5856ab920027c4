"""The connections that process groups over the CPU have made: to be cut, so that nobody waits in them any more.

gloo knows no abort. A rank that waits for one that lives, which itself has found out that a third is gone, would wait
for as long as operations may take; its connections closed, it learns of it at once. NCCL has an abort of its own.
"""

import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager

_FDS = "/proc/self/fd"


class Connections:
    """Those that were made while it was `watching`."""

    def __init__(self) -> None:
        self._made: dict[int, str] = {}

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Where launch may have ranks meet anew; else nobody will ask."""
        if "LAUNCH_CONTROL" not in os.environ:
            yield
            return
        before = _sockets()
        yield
        after = _sockets()
        self._made |= {fd: name for fd, name in after.items() if before.get(fd) != name}

    def cut(self) -> None:
        """Shut down all that are still there."""
        for fd, name in self._made.items():
            _shut_down(fd, name)
        self._made.clear()


made_here = Connections()  # by this process, for all of its groups


def _sockets() -> dict[int, str]:
    found = {}
    for name in os.listdir(_FDS):
        try:
            target = os.readlink(f"{_FDS}/{name}")
        except OSError:
            continue  # the folder itself, or closed since
        if target.startswith("socket:"):
            found[int(name)] = target
    return found


def _shut_down(fd: int, name: str) -> None:
    try:
        copy = os.dup(fd)  # gloo's own threads may close it at any moment
    except OSError:
        return
    try:
        if os.readlink(f"{_FDS}/{copy}") != name:
            return
        with socket.socket(fileno=os.dup(copy)) as one:
            one.getpeername()  # no listener: gloo ends the process where one of its own fails
            one.shutdown(socket.SHUT_RDWR)
    except OSError:
        return  # it is not connected, or no more
    finally:
        os.close(copy)
