"""Load or gather a model's weights, without optimizer or other state."""

import logging
from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from trainer.checkpoint.contents import Subjects
from trainer.checkpoint.loading import Reader
from trainer.checkpoint.names import ModelNames
from trainer.checkpoint.stand_ins import has_values
from trainer.checkpoint_files import catalog
from trainer.checkpoint_files.catalog import Entry
from trainer.checkpoint_files.choice import first_whole
from trainer.checkpoint_files.weights import averaged
from trainer.errors import TrainerError
from trainer.world import World, call_on_first

log = logging.getLogger("trainer")


def load_model(module: nn.Module, folder: str | Path, step: int | None = None, *, best: bool = False) -> int:
    """Load a checkpoint's weights into the module, or their average if one was saved; return the checkpoint's step.

    `folder` holds checkpoints, or is one; without a step it is the newest complete one, or with `best` the best one.
    Every byte that is loaded is compared with its checksum, and nothing changes on disk. A damaged checkpoint is
    skipped with a warning, but CheckpointDamaged is raised if it is that of the given step. Raises TrainerError if none
    is complete or if it is of another model. After an error the module may have undefined weights.
    """

    def use(entry: Entry) -> int:
        """Load the weights of one checkpoint and return its step."""
        reader = Reader(entry.path, averaged(catalog.read_manifest(entry)), Subjects({"": module}, {}, {}, {}), None)
        reader.prepare()
        reader.read()
        reader.apply()
        return entry.step

    return first_whole(Path(folder), use, log.warning, step, best=best)


def load_model_together(
    module: nn.Module, folder: Path, world: World, step: int | None = None, *, best: bool = False
) -> int:
    """Load weights on all ranks, which all call it, from the checkpoint that rank 0 chooses, and return its step.

    `folder` holds checkpoints, or is one. The choice is the checkpoint of `step`; without a step it is the newest
    complete one, or with `best` the best one. Raises TrainerError if that of `step` is damaged, if none is complete, or
    if it is of another model.
    """
    found = call_on_first(world, lambda: load_model(module, folder, step, best=best))
    if not world.is_first:
        load_model(module, folder, found, best=best)
    return found


def whole_weights(module: nn.Module, *, keep: bool) -> dict[str, Tensor]:
    """Return unsharded parameters and buffers by name, as in a checkpoint, on ranks with `keep`, else an empty dict.

    If the module is sharded every rank has to call it, as it is gathered tensor by tensor. Raises TrainerError for a
    pipeline, in which each rank has its own stage.
    """
    if not all(map(has_values, module.parameters())):
        raise TrainerError("whole_weights: the model is in stages (mesh pp)\nhint: export a checkpoint, which is whole")
    found = {}
    for name, tensor in _tensors(module).items():
        whole = tensor.full_tensor() if isinstance(tensor, DTensor) else tensor
        if keep:
            found[name] = whole.cpu()
    return found


def put_weights(module: nn.Module, weights: Mapping[str, Tensor]) -> None:
    """Copy whole weights, as `whole_weights` returns them with `keep`, into a model that is not sharded.

    Every parameter and buffer of the model must be in `weights`, with its shape: a name that is not there raises
    KeyError, and further names in `weights` are ignored.
    """
    with torch.no_grad():
        for name, tensor in _tensors(module).items():
            tensor.copy_(weights[name])


def _tensors(module: nn.Module) -> dict[str, Tensor]:
    """Return the module's parameters and buffers by their names in a checkpoint."""
    names = ModelNames({"": module})
    return names.parameters() | names.buffers()
