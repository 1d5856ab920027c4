"""One at a time: a file that is locked by whoever does what must be done once, and free again when that one is gone."""

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_OPEN = os.O_CREAT | os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC


@contextmanager
def locked(path: Path, *, wait: bool = False) -> Iterator[int | None]:
    """Hold the lock; None where somebody else does. A child that inherits it holds it as long as it lives."""
    fd = os.open(path, _OPEN, 0o600)
    try:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX if wait else fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield None
            return
        yield fd
    finally:
        os.close(fd)
