"""Strategies that deal the parameters out to the ranks: FSDP2 on each block, then on the rest."""

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from itertools import chain

import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard

from trainer.strategies.agreement import PersistentBuffers, take_from_first
from trainer.strategies.blocks import without_shared_parameters
from trainer.strategies.precision import low_dtype
from trainer.strategies.settings import StrategySettings, shard_size
from trainer.strategies.wrapped import Wrapped
from trainer.world import World

_NOTHING: AbstractContextManager[None] = nullcontext()


def sharded(module: nn.Module, blocks: Sequence[nn.Module], world: World, settings: StrategySettings) -> Wrapped:
    """zero2: gathered for a forward pass, parameters stay until the backward pass is over. fsdp: they are let go."""
    take_from_first(chain(module.parameters(), PersistentBuffers(module).tensors()))
    mesh = _mesh(world, shard_size(settings, world))
    policy = _policy(module, low_dtype(settings.precision))
    reshard = settings.strategy != "zero2"
    for block in without_shared_parameters(module, blocks):
        fully_shard(block, mesh=mesh, mp_policy=policy, reshard_after_forward=reshard)
    # Never of the rest: the backward pass begins with it.
    root = fully_shard(module, mesh=mesh, mp_policy=_outermost(policy), reshard_after_forward=False)
    return Wrapped(module, _Syncing(root, keep=not reshard), follows_first_rank=False)


class _Syncing:
    """Gradients are added up over ranks in the last micro-batch only; until then they gather, whole, on each rank."""

    def __init__(self, root: FSDPModule, *, keep: bool) -> None:
        self._root = root
        self._keep = keep  # parameters that are gathered, from one micro-batch to the next
        self._sync = True

    def __call__(self, sync: bool) -> AbstractContextManager[None]:
        if sync != self._sync:  # it walks through all modules
            self._root.set_requires_gradient_sync(sync)
            if self._keep:
                self._root.set_reshard_after_backward(sync)
            self._sync = sync
        return _NOTHING


def _mesh(world: World, size: int) -> DeviceMesh:
    kind = world.device.type
    if size == world.size:
        return init_device_mesh(kind, (size,), mesh_dim_names=("shard",))
    return init_device_mesh(kind, (world.size // size, size), mesh_dim_names=("copy", "shard"))


def _policy(module: nn.Module, dtype: torch.dtype | None) -> MixedPrecisionPolicy:
    """Parameters travel in the low dtype, gradients are added up in fp32; autocast does the casting of the rest."""
    if dtype is None or _keeps_statistics(module):
        return MixedPrecisionPolicy()
    return MixedPrecisionPolicy(param_dtype=dtype, reduce_dtype=torch.float32, cast_forward_inputs=False)


def _outermost(policy: MixedPrecisionPolicy) -> MixedPrecisionPolicy:
    if policy.param_dtype is None:
        return policy
    return MixedPrecisionPolicy(
        param_dtype=policy.param_dtype,
        reduce_dtype=policy.reduce_dtype,
        output_dtype=torch.float32,  # what the loss is made of
        cast_forward_inputs=False,
    )


def _keeps_statistics(module: nn.Module) -> bool:
    """BatchNorm and its like want their weights in the dtype of their statistics: fp32. Then all travel in it."""
    return any(getattr(part, "running_mean", None) is not None for part in module.modules())
