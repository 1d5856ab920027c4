"""Retry writes while a disk is full or fails for a while, so that a process which supervises a run does not end. A
thread opts in; in all others an error is raised at once.

A thread opts in by `waiting_for_disks`. Other threads raise the error: a submit reports it, and an answer to a peer
cannot wait.
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
# No room, or the disk fails: the launcher is not at fault, and it may pass.
DISK_ERRORS = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EROFS})
AGAIN_S = 0.25
_patient = threading.local()


@contextlib.contextmanager
def waiting_for_disks(note: Callable[[str], None] | None = None) -> Iterator[None]:
    """Let this thread retry writes that fail because of a disk, within the body. The start of each wait is written to
    stderr, and its end is passed to `note`, or without `note` to stderr.
    """
    _patient.note = note or say
    try:
        yield
    finally:
        _patient.note = None


def patiently(act: Callable[[], T]) -> T:
    """Return the result of `act`. If it raises an OSError of a full or failing disk and this thread retries
    (`waiting_for_disks`), it is repeated until it succeeds; any other error is raised.

    A repetition of `act` must be harmless, whether the failed call did all, some or nothing of its work.
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
    """Write a line to this process's log, ignoring any failure."""
    with contextlib.suppress(OSError):  # it is on the same disk, as a rule
        os.write(sys.stderr.fileno(), f"{text}\n".encode())
