"""Who keeps a run does not end because a disk is full or fails for a while: it waits, says so, and tries again.

A thread declares that it waits; then what it writes comes through, later if it must be. Elsewhere an error is an error:
a submit tells of it, and who answers a peer has no time.
"""

import contextlib
import errno
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import TypeVar

from launcher.errors import said_by_the_system

T = TypeVar("T")
# No room, or the disk does not do as it is told. Nothing of ours is wrong then, and it may pass.
DISK_ERRORS = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EROFS})
AGAIN_S = 0.25
_patient = threading.local()


@contextlib.contextmanager
def waiting_for_disks(note: Callable[[str], None] | None = None) -> Iterator[None]:
    """In here this thread does. stderr hears of each wait when it begins, and `note`, or stderr, when it is over."""
    _patient.note = note or say
    try:
        yield
    finally:
        _patient.note = None


def patiently(act: Callable[[], T]) -> T:
    """What `act` gives; while a disk is to blame for its failing it is done again, where this thread waits for disks.

    So it must be an act of which a part, or all, may have been done before.
    """
    note = getattr(_patient, "note", None)
    since, problem = time.monotonic(), ""
    while True:
        try:
            done = act()
        except OSError as error:
            if note is None or error.errno not in DISK_ERRORS:
                raise
            if not problem:
                problem = said_by_the_system(error)
                say(f"records wait for a disk: {problem}")
            time.sleep(AGAIN_S)
        else:
            if problem and note is not None:
                note(f"records had to wait for {time.monotonic() - since:.0f} s: {problem}")
            return done


def say(text: str) -> None:
    """To the log of this process, if that takes it."""
    with contextlib.suppress(OSError):  # it is on the same disk, as a rule
        os.write(sys.stderr.fileno(), f"{text}\n".encode())
