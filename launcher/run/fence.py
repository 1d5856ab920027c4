"""The file FENCE of a run holds the number of the newest attempt. Attempts with a lower number may not write records or
checkpoints any more.
"""

from launcher.errors import Fenced
from launcher.run.durable import Damaged, read_bytes, write_bytes
from launcher.run.layout import RunDir
from launcher.run.locks import locked

_LONGEST = 20  # digits


def fence(run: RunDir) -> int:
    """Return the number in the file FENCE, or 0 if the file does not exist; raise Damaged if it holds no number."""
    text = read_bytes(run.fence)
    if text is None:
        return 0
    if len(text) > _LONGEST or not text.strip().isdigit():
        raise Damaged(f"{run.fence}: expected the number of an attempt, got {text[:40]!r}")
    return int(text)


def raise_fence(run: RunDir, attempt: int, *, fsync: bool = True) -> None:
    """Prevent attempts before `attempt` from writing, durably with `fsync`.

    Raise Fenced if the fence already stands at a newer attempt, and Damaged if the file FENCE holds no number.
    """
    with locked(run.fence_lock, wait=True, optional=True):
        check_fence(run, attempt)
        if fence(run) != attempt:
            write_bytes(run.fence, f"{attempt}\n".encode(), fsync=fsync)


def check_fence(run: RunDir, attempt: int) -> None:
    """Raise Fenced if the file FENCE holds a higher number than `attempt`, and Damaged if it holds none. A run without
    the file is not fenced.
    """
    newest = fence(run)
    if newest > attempt:
        raise Fenced(f"attempt {attempt} of {run.path.name} is fenced: attempt {newest} took over")
