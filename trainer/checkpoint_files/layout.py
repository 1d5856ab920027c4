"""Every name in a checkpoints folder. Touches no disk."""

import os
import re
from typing import Literal

Kind = Literal["step", "best"]

MANIFEST = "MANIFEST.json"
FENCE = "FENCE"
BEST = "best"  # no folder: whoever is given this name in a folder takes the best checkpoint of that folder
FENCE_DRAFT = ".fence-draft"
FENCE_LOCK = ".fence-lock"
STAGES = "stages.json"  # where a pipeline that is cut by time was cut
LAST_STEP = 10**18 - 1  # what a folder's name has room for
_NAME = re.compile(r"(step|best)-([0-9]{8,18})")
_DATA = re.compile(r"rank-([0-9]{5,9})\.data")
_SAVE = re.compile(r"\.tmp-[0-9]+-a[0-9]+-[0-9a-f]+")
_DRAFT, _TRASH, _BAD = ".tmp-", ".trash-", ".bad-"


def folder_name(step: int, kind: Kind = "step") -> str:
    return f"{kind}-{step:08d}"


def parse_folder_name(name: str) -> tuple[Kind, int] | None:
    """Kind and step of a committed checkpoint's folder; None for everything else."""
    found = _NAME.fullmatch(name)
    if found is None:
        return None
    step = int(found[2])
    kind: Kind = "best" if found[1] == "best" else "step"
    return (kind, step) if folder_name(step, kind) == name else None


def draft_name(step: int, attempt: int, nonce: str) -> str:
    """A checkpoint that is being written."""
    return f"{_DRAFT}{step}-a{attempt}-{nonce}"


def copy_name(name: str) -> str:
    """What is being copied, file or folder: a draft too, but never one that a save has prepared."""
    return f"{_DRAFT}copy-{_shortened(name)}-{new_nonce()}"


def waiting_name(name: str, digest: str) -> str:
    """The folder where a copy is made of what cannot have its name yet, for another checkpoint has it: a draft too."""
    return f"{_DRAFT}copy-{_shortened(name)}-{digest}"


def is_draft(name: str) -> bool:
    return name.startswith(_DRAFT)


def is_save(name: str) -> bool:
    """Whether it is the draft of a save, as against one of a copy."""
    return _SAVE.fullmatch(name) is not None


def trash_name(name: str) -> str:
    """Where something goes right before it is deleted."""
    return f"{_TRASH}{_shortened(name)}-{new_nonce()}"


def is_trash(name: str) -> bool:
    return name.startswith(_TRASH)


def bad_name(name: str) -> str:
    """Where a damaged checkpoint is set aside."""
    return f"{_BAD}{_shortened(name)}-{new_nonce()}"


def is_bad(name: str) -> bool:
    return name.startswith(_BAD)


def data_name(rank: int) -> str:
    """The file of one rank."""
    return f"rank-{rank:05d}.data"


def is_data_name(name: str) -> bool:
    found = _DATA.fullmatch(name)
    return found is not None and data_name(int(found[1])) == name


def new_nonce() -> str:
    return os.urandom(6).hex()


def _shortened(name: str) -> str:
    """Of a name that is not ours it may be any: what is added must not make it longer than a name can be."""
    return name.lstrip(".")[:48]
