"""FENCE: the newest attempt. What an older one wants to write is refused."""

import contextlib
import errno
import fcntl
import os
from collections.abc import Iterator

from launcher.errors import Fenced
from launcher.rundir.durable import Damaged, write_bytes
from launcher.rundir.layout import RunDir

_LOCK = os.O_CREAT | os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC
_NO_LOCKS_HERE = (errno.ENOSYS, errno.EOPNOTSUPP, errno.ENOLCK)


def fence(run: RunDir) -> int:
    """The newest attempt that may write; 0 where there is none yet."""
    try:
        text = run.fence.read_bytes()
    except FileNotFoundError:
        return 0
    if not text.strip().isdigit():
        raise Damaged(f"{run.fence}: expected the number of an attempt, got {text[:40]!r}")
    return int(text)


def raise_fence(run: RunDir, attempt: int, *, fsync: bool = True) -> None:
    """Let nobody older write any more. Never lowers it: an attempt that is itself too old gets Fenced."""
    with _alone(run):
        check_fence(run, attempt)
        if fence(run) != attempt:
            write_bytes(run.fence, f"{attempt}\n".encode(), fsync=fsync)


def check_fence(run: RunDir, attempt: int) -> None:
    """Raise Fenced where a newer attempt exists."""
    newest = fence(run)
    if newest > attempt:
        raise Fenced(f"attempt {attempt} of {run.path.name} is fenced: attempt {newest} took over")


@contextlib.contextmanager
def _alone(run: RunDir) -> Iterator[None]:
    """Between looking at the fence and raising it nobody else may; the kernel drops a killed holder's lock."""
    fd = os.open(run.fence_lock, _LOCK, 0o600)
    try:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX)
        except OSError as error:  # a file system without locks: two that race within microseconds may pass
            if error.errno not in _NO_LOCKS_HERE:
                raise
        yield
    finally:
        os.close(fd)
