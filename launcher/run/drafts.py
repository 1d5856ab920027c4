"""Drafts that name their maker, so that what a killed one left is told from what a living one is making."""

import os
import shutil
import stat
from pathlib import Path

from launcher.run.identity import alive, this_process
from launcher.run.records import ProcessId

_PREFIX = ".tmp-"


def new_draft(folder: Path) -> Path:
    """A name in this folder that nobody has."""
    maker = this_process()
    who = f"{maker.host},{maker.boot_id},{maker.pid},{maker.start_ticks}"
    return folder / f"{_PREFIX}{who},{os.urandom(4).hex()}"


def remove_orphans(folder: Path) -> None:
    """Take away the drafts whose maker is dead. Of one on another machine nobody here can know."""
    for draft in _drafts(folder):
        maker = _maker(draft.name)
        if maker is not None and alive(maker) is False:
            remove(draft)


def in_work(folder: Path) -> bool:
    """Whether somebody else is, or may be, making something there."""
    makers = [maker for draft in _drafts(folder) if (maker := _maker(draft.name)) is not None]
    return any(maker != this_process() and alive(maker) is not False for maker in makers)


def _drafts(folder: Path) -> list[Path]:
    with os.scandir(folder) as entries:
        return [Path(entry.path) for entry in entries if entry.name.startswith(_PREFIX)]


def remove(draft: Path) -> None:
    """A file or a tree, there or not; another may be removing it at the same time."""
    try:
        is_dir = stat.S_ISDIR(draft.lstat().st_mode)
    except FileNotFoundError:
        return
    if is_dir:
        shutil.rmtree(draft, ignore_errors=True)
    else:
        draft.unlink(missing_ok=True)


def _maker(name: str) -> ProcessId | None:
    parts = name.removeprefix(_PREFIX).split(",")
    if len(parts) != 5 or not (parts[2].isdigit() and parts[3].isdigit()):
        return None
    return ProcessId(parts[0], parts[1], int(parts[2]), int(parts[3]))
