"""Lock files: one process at a time does what must be done once, and the kernel frees the lock when that process
exits.
"""

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
    """Hold the lock in the body and yield its descriptor; if another process holds it, yield None, or with `wait` wait
    for it.

    A child that inherits the descriptor holds the lock as long as it lives. With `optional` a file system without locks
    is accepted: two processes that race within microseconds may then both pass.
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
