"""The weights alone, for what does not train: of a committed checkpoint, or of a model that its ranks share."""

import logging
from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from trainer.checkpoint.contents import Subjects
from trainer.checkpoint.loading import Reader
from trainer.checkpoint.names import ModelNames
from trainer.checkpoint_files import catalog
from trainer.checkpoint_files.catalog import Entry
from trainer.checkpoint_files.layout import parse_folder_name
from trainer.errors import CheckpointDamaged, CheckpointPartial, TrainerError
from trainer.world import World, from_first

log = logging.getLogger("trainer")


def load_model(module: nn.Module, folder: Path, step: int | None = None) -> int:
    """Put the weights of a checkpoint into the module, every byte compared first; returns its step.

    `folder` holds checkpoints, or is one. Without a step it is the newest that is whole. Changes nothing on disk.
    """
    elsewhere: CheckpointPartial | None = None
    for entry in _candidates(folder, step):
        try:
            reader = Reader(entry.path, catalog.read_manifest(entry), Subjects({"": module}, {}, {}, {}), None)
            reader.prepare()
            reader.read()
        except CheckpointPartial as error:
            if step is not None:
                raise
            log.warning("passing over a checkpoint of which not all is on this node: %s", error)
            elsewhere = elsewhere or error
            continue
        except CheckpointDamaged as error:
            if step is not None:
                raise
            log.warning("passing over a damaged checkpoint: %s", error)
            continue
        reader.apply()
        return entry.step
    if elsewhere is not None:
        raise TrainerError(
            f"{elsewhere}\nhint: nodes with disks of their own have a part each: "
            "copy what is missing from the folder of this name on the others"
        )
    raise TrainerError(f"{folder}: expected a checkpoint{'' if step is None else f' of step {step}'}, found none")


def load_model_together(module: nn.Module, folder: Path, world: World) -> int:
    """load_model() on all ranks, whose module may be sharded: the newest step that the first rank finds whole."""
    step = from_first(world, lambda: load_model(module, folder))
    if not world.is_first:
        load_model(module, folder, step)
    return step


def whole_weights(module: nn.Module, *, keep: bool) -> dict[str, Tensor]:
    """Parameters and buffers by their names in a checkpoint, for those who `keep` them.

    Of a module that is sharded every rank has to call it: it is gathered tensor by tensor.
    """
    found = {}
    for name, tensor in _tensors(module).items():
        whole = tensor.full_tensor() if isinstance(tensor, DTensor) else tensor
        if keep:
            found[name] = whole.cpu()
    return found


def put_weights(module: nn.Module, weights: Mapping[str, Tensor]) -> None:
    """Put what whole_weights() gave into a model of the same kind."""
    with torch.no_grad():
        for name, tensor in _tensors(module).items():
            tensor.copy_(weights[name])


def _tensors(module: nn.Module) -> dict[str, Tensor]:
    names = ModelNames({"": module})
    return names.parameters() | names.buffers()


def _candidates(folder: Path, step: int | None) -> list[Entry]:
    parsed = parse_folder_name(folder.name)
    if parsed is not None and folder.is_dir():
        return [Entry(*parsed, folder)]
    found = [entry for entry in catalog.entries(folder) if step is None or entry.step == step]
    # The best one is kept apart and may be older than all others: only where it is asked for by its step.
    regular = [entry for entry in found if entry.kind == "step"]
    return list(reversed(regular or found))
