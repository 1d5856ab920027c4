"""Gather the contents of a checkpoint: tensors by name, and JSON documents."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.nn.parallel import DataParallel, DistributedDataParallel
from torch.optim import Optimizer

from trainer.checkpoint.generators import state_of_generators
from trainer.checkpoint.names import ModelNames
from trainer.checkpoint.optimizers import OptimizerNames
from trainer.checkpoint.tree import is_sharded, to_json
from trainer.errors import TrainerError
from trainer.world import World

SHARED = "shared"  # rank 0's state, for all


def of_rank(rank: int) -> str:
    """Return the name of the document that holds one rank's own state, such as `rank/00003`."""
    return f"rank/{rank:05d}"


def optimizer_of_rank(rank: int) -> str:
    """Return the name of the document with a sharded optimizer's values on one rank, such as `optimizer/00003`."""
    return f"optimizer/{rank:05d}"


class Stateful(Protocol):
    """An object whose state can be saved and restored, by `state_dict` and `load_state_dict`."""

    def state_dict(self) -> Any:
        """Return the state."""

    def load_state_dict(self, state: Any, /) -> Any:
        """Restore the state that `state_dict` returned; the result, if any, is ignored."""


@dataclass(frozen=True, slots=True)
class Subjects:
    """The objects of a training whose state is saved, by name.

    `shared` have the same state on all ranks, and `per_rank` one for each. `averages` are the averages of parameters
    (EMA).
    """

    models: Mapping[str, nn.Module]
    optimizers: Mapping[str, Optimizer]
    shared: Mapping[str, Stateful]  # objects whose state is the same on all ranks
    per_rank: Mapping[str, Stateful]  # objects whose state is kept for each rank
    averages: Mapping[str, Tensor] = field(default_factory=dict)  # of parameters, by `name_of_average`

    @property
    def buffers_follow_first_rank(self) -> bool:
        """Whether only rank 0's buffers are saved, because DDP broadcasts them before each forward pass."""
        return all(
            isinstance(model, DistributedDataParallel) and model.broadcast_buffers for model in self.models.values()
        )

    def devices(self, world: World) -> list[torch.device]:
        """Return the devices whose random generators the training uses.

        They are this rank's own device and, if a model is wrapped in DataParallel, the devices of its copies.
        """
        found = [world.device]
        for model in self.models.values():
            if isinstance(model, DataParallel):
                found += [torch.device("cuda", number) for number in model.device_ids]
        return list(dict.fromkeys(found))


@dataclass(slots=True)
class Contents:
    """The tensors and documents that one rank has for a checkpoint.

    `weights` are the names of the trained tensors. A tensor that several ranks list is written by one of them.
    """

    tensors: dict[str, Tensor] = field(default_factory=dict)
    documents: dict[str, bytes] = field(default_factory=dict)
    weights: frozenset[str] = frozenset()  # the names of those tensors that are trained


def gather(subjects: Subjects, world: World, *, brings_shared: bool | None = None) -> Contents:
    """Return everything that this rank has to save; the tensors are the live ones, not copies.

    `brings_shared` says whether this rank adds the state that is the same for all; by default (None) rank 0 does.
    Nothing is communicated. Raises TrainerError for state that cannot be saved.
    """
    brings_shared = world.is_first if brings_shared is None else brings_shared
    names = ModelNames(subjects.models)
    optimizers = {key: OptimizerNames(key, value, names) for key, value in subjects.optimizers.items()}
    contents = Contents(names.parameters(), weights=names.trained())
    contents.tensors |= subjects.averages
    buffers = names.buffers()
    if brings_shared:
        contents.tensors |= buffers
    for optimizer in optimizers.values():
        contents.tensors |= optimizer.tensors()

    mine: dict[str, Any] = {
        "generators": state_of_generators(*subjects.devices(world)),
        "objects": {key: value.state_dict() for key, value in subjects.per_rank.items()},
        "extra": names.extra_state(),
    }
    if not brings_shared and not subjects.buffers_follow_first_rank:
        mine["buffers"] = buffers
    for name, tensor in _add_document(contents, of_rank(world.rank), mine).items():
        if is_sharded(tensor):
            raise TrainerError(
                f"checkpoint: {name}: a sharded tensor cannot be in `per_rank`\nhint: keep it in `state`"
            )

    spread = {key: value.values() for key, value in optimizers.items() if value.is_partitioned}
    if spread:
        _add_document(contents, optimizer_of_rank(world.rank), spread)
    if brings_shared or any(is_sharded(tensor) for tensor in contents.tensors.values()):
        shared = {
            "groups": {key: value.groups() for key, value in optimizers.items()},
            "values": {key: value.values() for key, value in optimizers.items() if not value.is_partitioned},
            "layouts": {key: value.layouts() for key, value in optimizers.items()},
            "objects": {key: value.state_dict() for key, value in subjects.shared.items()},
            "extra": names.extra_state(),
            **({"tied": tied} if (tied := names.tied()) else {}),
        }
        _add_shared(contents, shared, brings_shared=brings_shared)
    return contents


def _add_document(contents: Contents, name: str, value: Any) -> dict[str, Tensor]:
    """Add `value` to the contents as a JSON document called `name`, with the tensors in it; return these by name.

    Raises TrainerError for values that cannot be saved.
    """
    beside: dict[str, Tensor] = {}
    contents.documents[name] = to_json(value, f"state/{name}", beside)
    contents.tensors |= beside
    return beside


def _add_shared(contents: Contents, value: Any, *, brings_shared: bool) -> None:
    """Add the state `value`, which is the same for all ranks, as a JSON document.

    The one rank with `brings_shared` adds all of it; the others add only their shards of the sharded tensors in it.
    Raises TrainerError for values that cannot be saved.
    """
    if brings_shared:
        _add_document(contents, SHARED, value)
        return
    beside: dict[str, Tensor] = {}
    to_json(value, f"state/{SHARED}", beside)
    contents.tensors |= {name: tensor for name, tensor in beside.items() if is_sharded(tensor)}
