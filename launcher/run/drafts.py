"""Name drafts (files and folders that are still being written) after the process that writes them, so that those of
dead processes can be found and removed.
"""

import os
import shutil
import stat
from pathlib import Path

from launcher.run.identity import alive, this_process
from launcher.run.records import ProcessId

_PREFIX = ".tmp-"


def new_draft(folder: Path) -> Path:
    """Return an unused name for a draft in the folder, which identifies this process as its maker."""
    maker = this_process()
    who = f"{maker.host},{maker.boot_id},{maker.pid},{maker.start_ticks}"
    return folder / f"{_PREFIX}{who},{os.urandom(4).hex()}"


def remove_orphans(folder: Path) -> None:
    """Remove the drafts in the folder whose makers have died. A draft that a process of another machine makes stays,
    because only that machine can tell whether the process lives.
    """
    for draft in _drafts(folder):
        maker = _maker(draft.name)
        if maker is not None and alive(maker) is False:
            remove(draft)


def in_work(folder: Path) -> bool:
    """Return whether another process that may be alive has a draft in the folder; one on another machine may be, as
    that cannot be checked here.
    """
    makers = [maker for draft in _drafts(folder) if (maker := _maker(draft.name)) is not None]
    return any(maker != this_process() and alive(maker) is not False for maker in makers)


def _drafts(folder: Path) -> list[Path]:
    """Return the drafts in the folder."""
    with os.scandir(folder) as entries:
        return [Path(entry.path) for entry in entries if entry.name.startswith(_PREFIX)]


def remove(draft: Path) -> None:
    """Remove a file or a tree if it exists; another process may be removing it at the same time."""
    try:
        is_dir = stat.S_ISDIR(draft.lstat().st_mode)
    except FileNotFoundError:
        return
    if is_dir:
        shutil.rmtree(draft, ignore_errors=True)
    else:
        draft.unlink(missing_ok=True)


def _maker(name: str) -> ProcessId | None:
    """Return the process that writes a draft of this name, or None if the name is not that of a draft."""
    parts = name.removeprefix(_PREFIX).split(",")
    if len(parts) != 5 or not (parts[2].isdigit() and parts[3].isdigit()):
        return None
    return ProcessId(parts[0], parts[1], int(parts[2]), int(parts[3]))
