"""Name the state of optimizers by their parameters; for a sharded optimizer, this rank's part of it."""

import logging
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor
from torch.optim import Optimizer

from trainer.checkpoint.names import ModelNames
from trainer.checkpoint.stand_ins import has_values
from trainer.errors import TrainerError

log = logging.getLogger("trainer")
Layout = list[int | None]  # for each dimension of the mesh, the one of the tensor that is split along it


class OptimizerNames:
    """An optimizer with the names that its state has in a checkpoint, such as `optimizer/layer1.weight/exp_avg`."""

    def __init__(self, key: str, optimizer: Optimizer, models: ModelNames) -> None:
        self.optimizer = optimizer
        self._models = models
        self.title = f"the optimizer {key!r}" if key else "the optimizer"
        self._prefix = f"optimizer/{key}/" if key else "optimizer/"

    @property
    def is_partitioned(self) -> bool:
        """Whether each rank has the state of only some parameters (ZeroRedundancyOptimizer, pipeline stages)."""
        return self._inner is not self.optimizer or any(
            not has_values(parameter) for group in self.optimizer.param_groups for parameter in group["params"]
        )

    def tensors(self) -> dict[str, Tensor]:
        """Return the state tensors that this rank has, by name: `optimizer/<parameter>/exp_avg`.

        Raises TrainerError for a DTensor whose values are not summed over ranks yet (a Partial placement).
        """
        return {
            f"{self._prefix}{name}/{key}": _whole_values(f"{self._prefix}{name}/{key}", value)
            for name, state in self._states()
            for key, value in state.items()
            if isinstance(value, Tensor)
        }

    def values(self) -> dict[str, dict[str, Any]]:
        """Return this rank's optimizer state that is not tensors, as {parameter's name: {key: value}}.

        The inner dict is empty for a parameter without any.
        """
        return {
            name: {key: value for key, value in state.items() if not isinstance(value, Tensor)}
            for name, state in self._states()
        }

    def layouts(self) -> dict[str, dict[str, Layout]]:
        """Return the sharding of those state tensors whose shape differs from their parameter's, by parameter and key.

        The other tensors are sharded as their parameters are.
        """
        found: dict[str, dict[str, Layout]] = {}
        for name, parameter, _ in self.owned():
            for key, value in self._inner.state.get(parameter, {}).items():
                if isinstance(value, DTensor) and value.shape != parameter.shape:
                    found.setdefault(name, {})[key] = [
                        one.dim if isinstance(one, Shard) else None for one in value.placements
                    ]
        return found

    def groups(self) -> list[dict[str, Any]]:
        """Return the parameter groups, with names in place of parameters."""
        return [
            {key: value for key, value in group.items() if key != "params"}
            | {"params": [self._name(parameter) for parameter in group["params"]]}
            for group in self.optimizer.param_groups
        ]

    def check_groups(self, groups: list[dict[str, Any]]) -> None:
        """Raise TrainerError unless the saved groups have the same parameters as this optimizer's."""
        mine = self.groups()
        if [group["params"] for group in mine] != [group["params"] for group in groups]:
            raise TrainerError(
                f"checkpoint: the groups of {type(self.optimizer).__name__} hold other parameters than when it was "
                f"saved: {_sizes(mine)} now, {_sizes(groups)} then"
            )

    def set_groups(self, groups: list[dict[str, Any]]) -> None:
        """Set the learning rate and all other options of each parameter group to the saved ones in `groups`.

        Call `check_groups` before, which refuses groups of other parameters.
        """
        for optimizer in {id(one): one for one in (self.optimizer, self._inner)}.values():
            for group, saved in zip(optimizer.param_groups, groups, strict=True):
                group.update(
                    {key: _on_device_of(group.get(key), value) for key, value in saved.items() if key != "params"}
                )

    def owned(self) -> Iterator[tuple[str, Tensor, dict[str, Any]]]:
        """Yield (name, parameter, its dict in `param_groups`) for each parameter of whose state this rank has a part.

        The name is that in the model, such as `layer1.weight`; a part may be all of the state.
        """
        for group in self._inner.param_groups:
            for parameter in group["params"]:
                if has_values(parameter):
                    yield self._name(parameter), parameter, group

    def prefix_of(self, name: str) -> str:
        """Return the prefix `optimizer/NAME/` of the names of state tensors of the parameter called `name`."""
        return f"{self._prefix}{name}/"

    def replace(self, states: Mapping[str, dict[str, Any]]) -> None:
        """Set the state of every parameter in `states`, given by the parameter's name, and clear all other state."""
        self._inner.state.clear()
        for name, parameter, _ in self.owned():
            if name in states:
                self._inner.state[parameter] = states[name]

    @property
    def _inner(self) -> Optimizer:
        """The optimizer that has this rank's state: this one, or the one inside a ZeroRedundancyOptimizer."""
        if isinstance(self.optimizer, ZeroRedundancyOptimizer):
            inner: Optimizer = self.optimizer.optim  # the one of this rank's share
            return inner
        return self.optimizer

    def _states(self) -> Iterator[tuple[str, dict[str, Any]]]:
        """Yield the name and state of each parameter that has state on this rank."""
        state = self._inner.state
        for name, parameter, _ in self.owned():
            if parameter in state:
                yield name, state[parameter]

    def _name(self, parameter: Tensor) -> str:
        """Return the parameter's name without the leading `model/`."""
        return self._models.name_in(self.optimizer, parameter).removeprefix("model/")


def sharded_again(tensor: Tensor, parameter: Tensor, layout: Layout | None) -> Tensor:
    """Return `tensor`, an optimizer's state of `parameter`, divided over ranks as it was when it was saved.

    `tensor` is whole, and `layout` has for each dimension of the mesh of ranks the dimension of the tensor that is
    divided along it (None: none is). If the mesh has another number of dimensions now, each rank gets the whole tensor.
    If `layout` is None, or the parameter is not sharded, `tensor` is returned unchanged.
    """
    if layout is None or not isinstance(parameter, DTensor):
        return tensor
    mesh = parameter.device_mesh
    wanted = layout if len(layout) == mesh.ndim else [None] * mesh.ndim
    placements = [Replicate() if dim is None else Shard(dim) for dim in wanted]
    return distribute_tensor(tensor, mesh, placements, src_data_rank=None)


def _whole_values(name: str, tensor: Tensor) -> Tensor:
    """Return the tensor `name` without its autograd graph.

    Raises TrainerError for a DTensor with a Partial placement, whose values are not summed over ranks yet.
    """
    if isinstance(tensor, DTensor) and any(placement.is_partial() for placement in tensor.placements):
        raise TrainerError(f"checkpoint: {name} is a sum that its ranks have not added up yet: it cannot be saved")
    return tensor.detach()


def _on_device_of(live: Any, saved: Any) -> Any:
    """Return `saved` on the device of `live`, the present value, if both are tensors, else unchanged.

    A learning rate, for example, may be a tensor or a number.
    """
    return saved.to(live.device) if isinstance(live, Tensor) and isinstance(saved, Tensor) else saved


def device_of_state(key: str, group: Mapping[str, Any], parameter: Tensor) -> torch.device:
    """Return the device for the tensor `key` of a parameter's state; `group` is the parameter's group.

    It is the parameter's device, but the CPU for `step`, unless the group is `capturable` or `fused`.
    """
    if key == "step" and not (group.get("capturable") or group.get("fused")):
        return torch.device("cpu")
    return parameter.device


def _sizes(groups: list[dict[str, Any]]) -> str:
    """Return as text, for a message, how many parameters each group has."""
    return ", ".join(str(len(group["params"])) for group in groups)
