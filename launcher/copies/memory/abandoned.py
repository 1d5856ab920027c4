"""Remove folders in this node's memory whose run is over and whose agent was killed.

An agent removes its folder as it ends, else its supervisor does. If both were killed for good, the next agent that
starts on the node does, of any run of the user. A folder is left alone if its agent may live, or may have a successor
by itself.
"""

from pathlib import Path

from launcher.copies.memory.tier import MEMORY, Owner, give_back, owned
from launcher.run.attempts import newest
from launcher.run.durable import readable
from launcher.run.identity import alive
from launcher.run.layout import RunDir
from launcher.run.records import AttemptEnd, Handle


def sweep(memory: Path = MEMORY) -> list[Path]:
    """Remove memory folders that no run uses any more, and return what they were."""
    found = [tier.path for owner, tier in owned(memory) if _is_abandoned(owner)]
    for path in found:
        give_back(path)
    return found


def _is_abandoned(owner: Owner) -> bool:
    """Return whether the agent is dead and no later one of its run can follow by itself."""
    run = RunDir(Path(owner.run_dir))
    if alive(owner.agent) is not False:
        return False
    try:
        last = newest(run) if run.path.exists() else None
    except OSError:  # another run's folder cannot be read: undecidable, and no concern of this run
        return False
    if last is None:
        return run.path.parent.is_dir()  # it was removed; else a disk may only be away
    end, handle = readable(last.end, AttemptEnd), readable(last.handle, Handle)
    supervisor = handle.supervisor if handle is not None else None
    return (end is not None and end.state.ended) or (supervisor is not None and alive(supervisor) is False)
