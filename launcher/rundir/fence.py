"""FENCE: the newest attempt. What an older one wants to write is refused."""

from launcher.errors import Fenced
from launcher.rundir.durable import write_bytes
from launcher.rundir.layout import RunDir


def fence(run: RunDir) -> int:
    """The newest attempt that may write; 0 where there is none yet."""
    try:
        return int(run.fence.read_text())
    except FileNotFoundError:
        return 0


def raise_fence(run: RunDir, attempt: int) -> None:
    """Let nobody older write any more. Never lowers it."""
    check_fence(run, attempt)
    if fence(run) != attempt:
        write_bytes(run.fence, f"{attempt}\n".encode())


def check_fence(run: RunDir, attempt: int) -> None:
    """Raise Fenced where a newer attempt exists."""
    newest = fence(run)
    if newest > attempt:
        raise Fenced(f"attempt {attempt} of {run.path.name} is fenced: attempt {newest} took over")
