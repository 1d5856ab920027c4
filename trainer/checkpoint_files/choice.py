"""Choose the checkpoint to load weights from; nothing on disk changes."""

from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from trainer.checkpoint_files import catalog
from trainer.checkpoint_files.catalog import Entry
from trainer.checkpoint_files.layout import BEST, parse_folder_name
from trainer.errors import CheckpointDamaged, CheckpointPartial, TrainerError

_Found = TypeVar("_Found")


def candidates(folder: Path, step: int | None = None, *, best: bool = False) -> list[Entry]:
    """Return the checkpoints that may be loaded, newest first.

    `folder` holds checkpoints, is one itself (then only that one), or is FOLDER/best. A `step` keeps only those of that
    step. With `best` only best ones are returned; without, best ones only if there is no other.
    """
    folder, best = named_best(folder, best=best)
    parsed = parse_folder_name(folder.name)
    if parsed is not None and folder.is_dir():
        return [Entry(*parsed, folder)]
    found = [entry for entry in catalog.entries(folder) if step is None or entry.step == step]
    # The best one is kept apart and may be older than all others: only where it is asked for, or by its step.
    wanted = [entry for entry in found if entry.kind == ("best" if best else "step")]
    return list(reversed(wanted or ([] if best else found)))


def named_best(folder: Path, *, best: bool = False) -> tuple[Path, bool]:
    """Return (the folder of checkpoints that `folder` names, whether the best checkpoint in it is to be loaded).

    If `folder` ends in `best` and does not exist, the result is its parent and True, as `checkpoints/best` means the
    best checkpoint in `checkpoints`. Otherwise it is `folder` and `best`.
    """
    return (folder.parent, True) if folder.name == BEST and not folder.exists() else (folder, best)


def first_whole(
    folder: Path, use: Callable[[Entry], _Found], warn: Callable[[str], None], step: int | None = None, *,
    best: bool = False,
) -> _Found:  # fmt: skip
    """Return the result of `use` for the first candidate that is complete and undamaged.

    Candidates are the checkpoints from the newest on, with `best` the best one, or only that of `step`. If `use` raises
    CheckpointDamaged, the candidate is skipped with a message to `warn`; for a given step the error is raised. Raises
    TrainerError if no candidate is left. Other errors of `use` are raised as they are.
    """
    elsewhere: CheckpointPartial | None = None
    folder, best = named_best(folder, best=best)
    for entry in candidates(folder, step, best=best):
        try:
            return use(entry)
        except CheckpointPartial as error:
            if step is not None:
                raise
            warn(f"skipping a checkpoint that is not complete on this node: {error}")
            elsewhere = elsewhere or error
        except CheckpointDamaged as error:
            if step is not None:
                raise
            warn(f"skipping a damaged checkpoint: {error}")
    if elsewhere is not None:
        raise TrainerError(
            f"{elsewhere}\nhint: nodes with disks of their own have a part each: "
            "copy what is missing from the folder of this name on the others"
        )
    which = "the best checkpoint" if best else "a checkpoint" if step is None else f"a checkpoint of step {step}"
    raise TrainerError(f"{folder}: expected {which}, found none")
