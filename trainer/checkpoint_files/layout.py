"""Every name of a file or folder in a checkpoint directory; touches no disk."""

import os
import re
from typing import Literal

Kind = Literal["step", "best"]

MANIFEST = "MANIFEST.json"
FENCE = "FENCE"
BEST = "best"  # no folder: FOLDER/best stands for the best checkpoint in FOLDER
FENCE_DRAFT = ".fence-draft"
FENCE_LOCK = ".fence-lock"
STAGES = "stages.json"  # where a pipeline that is cut by time was cut
LAST_STEP = 10**18 - 1  # what a folder's name has room for
_NAME = re.compile(r"(step|best)-([0-9]{8,18})")
_DATA = re.compile(r"rank-([0-9]{5,9})\.data")
_SAVE = re.compile(r"\.tmp-[0-9]+-a[0-9]+-[0-9a-f]+")
_DRAFT, _TRASH, _BAD = ".tmp-", ".trash-", ".bad-"


def folder_name(step: int, kind: Kind = "step") -> str:
    """Return the name of a committed checkpoint's folder, such as `step-00001200` or `best-00001200`."""
    return f"{kind}-{step:08d}"


def parse_folder_name(name: str) -> tuple[Kind, int] | None:
    """Return kind and step of a committed checkpoint's folder from its name, or None for any other name."""
    found = _NAME.fullmatch(name)
    if found is None:
        return None
    step = int(found[2])
    kind: Kind = "best" if found[1] == "best" else "step"
    return (kind, step) if folder_name(step, kind) == name else None


def draft_name(step: int, attempt: int, nonce: str) -> str:
    """Return the name of the folder of a checkpoint that is being written, such as `.tmp-1200-a2-3f9a1c2b4d5e`.

    `attempt` is that of the run. `nonce` is random and makes the name unique.
    """
    return f"{_DRAFT}{step}-a{attempt}-{nonce}"


def copy_name(name: str) -> str:
    """Return a new name for a draft in which the file or folder `name` is copied, distinct from drafts of saves."""
    return f"{_DRAFT}copy-{_shortened(name)}-{new_nonce()}"


def waiting_name(name: str, digest: str) -> str:
    """Return the name of the draft into which a checkpoint is downloaded or copied; its folder is to be called `name`.

    A name of its own is needed because a folder `name` may exist already, from another save of the same step. `digest`
    is that of the checkpoint's manifest.
    """
    return f"{_DRAFT}copy-{_shortened(name)}-{digest}"


def is_draft(name: str) -> bool:
    """Return whether this is the name of a draft, that is of an unfinished save or copy."""
    return name.startswith(_DRAFT)


def is_save(name: str) -> bool:
    """Return whether this is the name of a draft that ranks save into, not of one for a copy from another disk."""
    return _SAVE.fullmatch(name) is not None


def trash_name(name: str) -> str:
    """Return the name to which `name` is renamed just before it is deleted: it begins with `.trash-`."""
    return f"{_TRASH}{_shortened(name)}-{new_nonce()}"


def is_trash(name: str) -> bool:
    """Return whether this is the name of something about to be deleted."""
    return name.startswith(_TRASH)


def bad_name(name: str) -> str:
    """Return the name to which a damaged checkpoint is renamed: it begins with `.bad-`, and contains `name`."""
    return f"{_BAD}{_shortened(name)}-{new_nonce()}"


def is_bad(name: str) -> bool:
    """Return whether this is the name of a damaged checkpoint that was renamed."""
    return name.startswith(_BAD)


def data_name(rank: int) -> str:
    """Return the name of one rank's file, such as `rank-00003.data`."""
    return f"rank-{rank:05d}.data"


def is_data_name(name: str) -> bool:
    """Return whether this is the name of a rank's file, such as `rank-00003.data`."""
    found = _DATA.fullmatch(name)
    return found is not None and data_name(int(found[1])) == name


def new_nonce() -> str:
    """Return a random text that makes a name unique."""
    return os.urandom(6).hex()


def _shortened(name: str) -> str:
    """Return the name, cut to 48 characters so that longer names made of it stay below the file system's limit."""
    return name.lstrip(".")[:48]
