"""The weights of a committed checkpoint, for a program that does not train."""

import logging
from pathlib import Path

from torch import nn

from trainer.checkpoint.contents import Subjects
from trainer.checkpoint.loading import Reader
from trainer.checkpoint_files import catalog
from trainer.checkpoint_files.catalog import Entry
from trainer.checkpoint_files.layout import parse_folder_name
from trainer.errors import CheckpointDamaged, TrainerError
from trainer.world import World, from_first

log = logging.getLogger("trainer")


def load_model(module: nn.Module, folder: Path, step: int | None = None) -> int:
    """Put the weights of a checkpoint into the module, every byte compared first; returns its step.

    `folder` holds checkpoints, or is one. Without a step it is the newest that is whole. Changes nothing on disk.
    """
    for entry in _candidates(folder, step):
        try:
            reader = Reader(entry.path, catalog.read_manifest(entry), Subjects({"": module}, {}, {}, {}), None)
            reader.prepare()
            reader.read()
        except CheckpointDamaged as error:
            if step is not None:
                raise
            log.warning("passing over a damaged checkpoint: %s", error)
            continue
        reader.apply()
        return entry.step
    raise TrainerError(f"{folder}: expected a checkpoint{'' if step is None else f' of step {step}'}, found none")


def load_model_together(module: nn.Module, folder: Path, world: World) -> int:
    """load_model() on all ranks, whose module may be sharded: the newest step that the first rank finds whole."""
    step = from_first(world, lambda: load_model(module, folder))
    if not world.is_first:
        load_model(module, folder, step)
    return step


def _candidates(folder: Path, step: int | None) -> list[Entry]:
    parsed = parse_folder_name(folder.name)
    if parsed is not None and folder.is_dir():
        return [Entry(*parsed, folder)]
    found = [entry for entry in catalog.entries(folder) if step is None or entry.step == step]
    # The best one is kept apart and may be older than all others: only where it is asked for by its step.
    regular = [entry for entry in found if entry.kind == "step"]
    return list(reversed(regular or found))
