"""Wake a supervisor's thread from the coordinators that it has started, once they have written what others need."""

import os
import select
from collections.abc import Callable, MutableMapping
from functools import partial

SHARED_EVENT = "LAUNCH_SHARED_EVENT"
_TARGET = "anon_inode:[eventfd]"


class SharedEvent:
    """An event that processes share by a descriptor; it stays set until one wait has ended by it."""

    def __init__(self) -> None:
        self.fd = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)

    def close(self) -> None:
        """Close the descriptor of this process; setting a closed event does nothing."""
        os.close(self.fd)
        self.fd = -1

    def set(self) -> None:
        """End a wait for the event, or the next one."""
        if self.fd != -1:
            os.eventfd_write(self.fd, 1)

    def wait(self, timeout_s: float) -> bool:
        """Wait until the event is set, or for that long; return whether it was set."""
        was_set, _, _ = select.select([self.fd], [], [], timeout_s)
        return bool(was_set and os.eventfd_read(self.fd))


def setter_from(environ: MutableMapping[str, str]) -> Callable[[], None]:
    """Remove the event from `environ` and return a function that sets it, or that does nothing if there is no event.

    The supervisor of this process waits for the event. Programs that this process executes do not inherit its
    descriptor.
    """
    word = environ.pop(SHARED_EVENT, "")
    try:
        is_event = os.readlink(f"/proc/self/fd/{int(word)}") == _TARGET
    except (OSError, ValueError):  # a container passes variables on, and not descriptors
        is_event = False
    if not is_event:
        return lambda: None
    os.set_inheritable(int(word), False)
    return partial(os.eventfd_write, int(word), 1)
