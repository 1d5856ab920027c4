"""One at a time: a file that is locked by whoever does what must be done once, and free again when that one is gone."""

import errno
import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from launcher.run.patience import patiently

NO_LOCKS_HERE = (errno.ENOSYS, errno.EOPNOTSUPP, errno.ENOLCK)
_OPEN = os.O_CREAT | os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC


@contextmanager
def locked(path: Path, *, wait: bool = False, optional: bool = False) -> Iterator[int | None]:
    """Hold the lock; None where somebody else does. A child that inherits it holds it as long as it lives.

    `optional`: on a file system without locks it is done without: two that race within microseconds may pass.
    """
    fd = patiently(lambda: os.open(path, _OPEN, 0o600))
    try:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX if wait else fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield None
            return
        except OSError as error:
            if not optional or error.errno not in NO_LOCKS_HERE:
                raise
        yield fd
    finally:
        os.close(fd)
