"""Wake a supervisor's thread from the coordinators that it has started, once they have written what others need."""

import os
import select
from collections.abc import Callable, MutableMapping
from functools import partial

BELL = "LAUNCH_BELL"
_TARGET = "anon_inode:[eventfd]"


class Bell:
    """An event that processes share by a descriptor; it stays rung until one wait has ended by it."""

    def __init__(self) -> None:
        self.fd = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)

    def close(self) -> None:
        """Close the descriptor of this process; a closed bell is silent."""
        os.close(self.fd)
        self.fd = -1

    def ring(self) -> None:
        """End a wait for the bell, or the next one."""
        if self.fd != -1:
            os.eventfd_write(self.fd, 1)

    def wait(self, timeout_s: float) -> bool:
        """Wait until the bell rings, or for that long; return whether it has rung."""
        rung, _, _ = select.select([self.fd], [], [], timeout_s)
        return bool(rung and os.eventfd_read(self.fd))


def ringer_from(environ: MutableMapping[str, str]) -> Callable[[], None]:
    """Remove the bell from `environ` and return a function that rings it, or that does nothing if there is no bell.

    The supervisor of this process waits for the bell. Programs that this process executes do not inherit its
    descriptor.
    """
    word = environ.pop(BELL, "")
    try:
        is_bell = os.readlink(f"/proc/self/fd/{int(word)}") == _TARGET
    except (OSError, ValueError):  # a container passes variables on, and not descriptors
        is_bell = False
    if not is_bell:
        return lambda: None
    os.set_inheritable(int(word), False)
    return partial(os.eventfd_write, int(word), 1)
