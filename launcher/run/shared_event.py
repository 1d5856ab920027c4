"""An event that coordinators set, once they have written records that others need, to wake a thread of their
supervisor.
"""

import os
import select
from collections.abc import Callable, MutableMapping
from functools import partial

SHARED_EVENT = "LAUNCH_SHARED_EVENT"
_TARGET = "anon_inode:[eventfd]"


class SharedEvent:
    """An event that processes share by a descriptor. Once set it stays set until a wait returns because of it."""

    def __init__(self) -> None:
        self.fd = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)

    def close(self) -> None:
        """Close this process's descriptor. To set the event afterwards does nothing."""
        os.close(self.fd)
        self.fd = -1

    def set(self) -> None:
        """Wake the thread that waits for the event, or let the next wait return at once."""
        if self.fd != -1:
            os.eventfd_write(self.fd, 1)

    def wait(self, timeout_s: float) -> bool:
        """Wait until the event is set, for at most `timeout_s` seconds; return whether it was set."""
        was_set, _, _ = select.select([self.fd], [], [], timeout_s)
        return bool(was_set and os.eventfd_read(self.fd))


def setter_from(environ: MutableMapping[str, str]) -> Callable[[], None]:
    """Return a function that sets the event for which this process's supervisor waits, or that does nothing if
    `environ` names no event.

    The variable is removed from `environ`, and programs that this process executes do not inherit the descriptor.
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
