"""Check the optimizers of a training: one, or several by name."""

import inspect
import logging
import re
from collections.abc import Iterator, Mapping
from typing import Any

from torch import Tensor, nn
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.optim import Adafactor, Muon, Optimizer

from trainer.errors import BadSettings
from trainer.strategies.parameters import few, parameters_of
from trainer.world import World

Optimizers = Mapping[str, Optimizer]  # an only one may go without a name: ""
_MEET = (Muon, Adafactor)  # of a shard alone they cannot tell its step: they gather it, or its norms
_NAME = re.compile(r"[A-Za-z0-9_]+")


def checked(made: Optimizer | Optimizers, module: nn.Module, world: World, *, own_step: bool = False) -> Optimizers:
    """Return the optimizers that the user's function made, by name; a single one has the name "".

    Raises BadSettings if two have the same parameter, one has a parameter that is not the model's, or one calls the
    model again in its step. The last is allowed with `own_step`: the user's own training step steps them. Trainable
    parameters without an optimizer get a warning.
    """
    optimizers = {"": made} if isinstance(made, Optimizer) else _named(made)
    if not own_step:
        _refuse_closures(optimizers)
    names = {id(parameter): name for name, parameter in parameters_of(module).named.items()}
    owners = _owners(optimizers, names)
    # Sharding replaces parameters: an optimizer of the old ones would train nothing, and say nothing.
    if strangers := len(owners.keys() - names.keys()):
        raise BadSettings(
            f"optimizer: {strangers} of its parameters are not the model's\n"
            "hint: make it inside of make_optimizer, of the parameters that are handed to it"
        )
    if world.is_first:
        _warn_of_unoptimized(
            [names[id(one)] for one in module.parameters() if one.requires_grad and id(one) not in owners]
        )
    return optimizers


def _refuse_closures(optimizers: Optimizers) -> None:
    """Raise BadSettings for an optimizer whose step() needs a closure that calls the model again, such as LBFGS."""
    for optimizer in optimizers.values():
        kind = type(optimizer)
        closure = inspect.signature(kind.step).parameters.get("closure")
        needs_one = closure is not None and closure.default is inspect.Parameter.empty
        steps_twice = kind.__name__.endswith("SAM") or (hasattr(kind, "first_step") and hasattr(kind, "second_step"))
        if needs_one or steps_twice:
            raise BadSettings(
                f"optimizer: {kind.__name__} calls the model again in each step, which a Trainer does not do\n"
                "hint: AdamW or SGD; or Checkpointer in a loop of your own"
            )


def parameters_in(optimizer: Optimizer) -> Iterator[Tensor]:
    """Yield all parameters that the optimizer steps, group by group."""
    return (parameter for group in optimizer.param_groups for parameter in group["params"])


def has_gradients(optimizer: Optimizer) -> bool:
    """Return whether any of the optimizer's parameters has a gradient."""
    return any(one.grad is not None for one in parameters_in(optimizer))


def refuse_offloaded(optimizers: Optimizers, world: World, shards: int) -> None:
    """Raise BadSettings if an optimizer cannot step parameters that are offloaded to the host's memory.

    An optimizer whose step needs more of a parameter than this rank's shard would have to send it, and NCCL sends
    nothing from there. `shards` is the number of ranks over which parameters are sharded.
    """
    if world.device.type != "cuda" or shards == 1:
        return
    for optimizer in optimizers.values():
        if isinstance(optimizer, _MEET):
            raise BadSettings(
                f"offload: does not go with {type(optimizer).__name__}, whose step wants more of a parameter than a "
                "rank has, and GPUs send nothing out of the host's memory\nhint: AdamW, or without offload"
            )


def _named(made: object) -> Optimizers:
    """Return `made`, which has to be a mapping of optimizers by name. Raises BadSettings for anything else."""
    if not isinstance(made, Mapping) or not made:
        raise BadSettings(f"optimizer: expected an optimizer, or several by name, got {type(made).__name__}")
    for name, one in made.items():
        if not isinstance(name, str) or not _NAME.fullmatch(name):
            raise BadSettings(f"optimizer: expected names of letters, digits and _, got {name!r}")
        if not isinstance(one, Optimizer):
            raise BadSettings(f"optimizer: expected an optimizer as {name!r}, got {type(one).__name__}")
    return made


def _owners(optimizers: Optimizers, names: Mapping[int, str]) -> dict[int, str]:
    """Return the name of each parameter's optimizer, by the parameter's id.

    Raises BadSettings if two optimizers have the same parameter; `names`, the parameters' names by id, are for that
    message.
    """
    owners: dict[int, str] = {}
    for key, optimizer in optimizers.items():
        for one in parameters_in(optimizer):
            if owners.setdefault(id(one), key) != key:
                raise BadSettings(
                    f"optimizer: {names.get(id(one), 'a parameter')} is in both {owners[id(one)]!r} and {key!r}\n"
                    "hint: parameters.split(...) gives those of a pattern, and all the others"
                )
    return owners


def _warn_of_unoptimized(names: list[str]) -> None:
    """Log a warning that no optimizer has the trainable parameters `names`; do nothing if there are none.

    A user who selects an optimizer's parameters by name may miss some.
    """
    if names:
        logging.getLogger("trainer").warning(
            "optimizer: none has %s: nothing is learned there\nhint: requires_grad_(False) says so", few(names)
        )


def zero1_optimizer(optimizer: Optimizer) -> ZeroRedundancyOptimizer:
    """Return the user's optimizer in a ZeroRedundancyOptimizer, which gives each rank a part of the parameters.

    Raises BadSettings for parameters of several dtypes.
    """
    groups = [dict(group) for group in optimizer.param_groups]
    parameters = [parameter for group in groups for parameter in group["params"]]
    dtypes = {str(parameter.dtype) for parameter in parameters}
    if len(dtypes) > 1:
        raise BadSettings(f"strategy: zero1 expected parameters of one dtype, got {', '.join(sorted(dtypes))}")

    def with_share(share: list[dict[str, Any]], **_: Any) -> Optimizer:
        """Return the user's optimizer with this rank's part of the parameters."""
        # Not a new one: the user may have set more on this one than its arguments.
        optimizer.param_groups = share
        mine = {id(parameter) for group in share for parameter in group["params"]}
        for parameter in [parameter for parameter in optimizer.state if id(parameter) not in mine]:
            del optimizer.state[parameter]
        return optimizer

    shared = ZeroRedundancyOptimizer(
        groups,
        optimizer_class=with_share,  # type: ignore[arg-type] # it is only called
        # One message a rank instead of one a parameter; a view would undo another memory format.
        parameters_as_bucket_view=all(parameter.is_contiguous() for parameter in parameters),
    )
    shared.defaults = optimizer.defaults  # schedulers ask whether there are betas, or a momentum
    return shared
