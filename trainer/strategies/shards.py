"""Strategies that shard the parameters over ranks: FSDP2 on each block, then on the rest."""

import logging
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import CPUOffloadPolicy, FSDPModule, MixedPrecisionPolicy, OffloadPolicy, fully_shard

from trainer.connections import group_connections
from trainer.strategies.blocks import without_shared_parameters
from trainer.strategies.broadcast import PersistentBuffers, broadcast_from_first
from trainer.strategies.paging import fill
from trainer.strategies.precision import low_dtype
from trainer.strategies.settings import StrategySettings, shard_size
from trainer.strategies.wrapped import Wrapped
from trainer.world import World

log = logging.getLogger("trainer")
STAGES, COPIES, SHARDED, DIVIDING = "pp", "copy", "shard", "tp"  # dimensions of the mesh, outermost first
_NOTHING: AbstractContextManager[None] = nullcontext()


def sharded(
    module: nn.Module,
    units: Sequence[nn.Module],
    world: World,
    settings: StrategySettings,
    rows: dict[str, Tensor] | None = None,
    mesh: DeviceMesh | None = None,
    *,
    deferred: bool = False,
) -> Wrapped:
    """Shard the module over the ranks, each of `units` separately and then the rest; return it wrapped.

    All ranks call it. They begin with rank 0's weights, which are sent to the others; with `deferred` nothing is sent,
    because all ranks are about to load the same weights from a checkpoint.

    Under zero2 parameters are whole for all passes of a step, else gathered block by block. `rows` is given if the
    module is on the meta device: by a parameter's name, the rows of it that this rank keeps. `mesh`, from `mesh_over`,
    is given if the module's layers are already divided on it (tensor parallel).
    """
    # What is not on the device yet travels by the group of the CPUs.
    group = world.control if settings.offload or rows is not None else None
    if not deferred:
        own = [] if rows is not None or mesh is not None else module.parameters()  # what is divided is rank 0's by now
        broadcast_from_first([*own, *PersistentBuffers(module).tensors()], group)
    reshard = settings.reshard and settings.strategy != "zero2"
    mesh = mesh or mesh_over(world, settings)
    root, alone = _shard_parts(module, units, world, settings, mesh, reshard=reshard, gives_fp32=True)
    if settings.prefetch is not None:
        _gather_ahead(module, root, alone, settings.prefetch)
    if rows is not None:
        fill(module, rows, torch.device("cpu") if settings.offload else world.device)
    return Wrapped(module, _Syncing(root, settings), follows_first_rank=False)


def shard_stage(
    stage: nn.Module,
    units: Sequence[nn.Module],
    world: World,
    settings: StrategySettings,
    mesh: DeviceMesh,
    *,
    last: bool,
) -> None:
    """Shard a pipeline stage over the ranks that have it, each of `units` separately.

    Parameters are gathered once for all micro-batches of a batch, and gradients reduced after the last, which saves
    many messages. `last`: it is the pipeline's last stage, whose output is in fp32 for the loss.
    """
    here = set(stage.modules())
    _shard_parts(stage, [one for one in units if one in here], world, settings, mesh, reshard=False, gives_fp32=last)


def _shard_parts(
    module: nn.Module,
    units: Sequence[nn.Module],
    world: World,
    settings: StrategySettings,
    mesh: DeviceMesh,
    *,
    reshard: bool,
    gives_fp32: bool,
) -> tuple[FSDPModule, Sequence[nn.Module]]:
    """Shard the module, and each of `units` separately; return the root and the units that were sharded.

    A unit that shares parameters with other parts is not sharded separately but with the root. `reshard`: parameters
    are dropped after the forward pass and gathered again. `gives_fp32`: the module's output is fp32, even if it
    computes in a lower precision.
    """
    mesh = mesh[tuple(name for name in mesh.mesh_dim_names or () if name in (COPIES, SHARDED))]
    policy = _policy(module, low_dtype(settings.precision))
    offload = CPUOffloadPolicy(pin_memory=world.device.type == "cuda") if settings.offload else OffloadPolicy()
    alone = without_shared_parameters(module, units)
    if not alone and world.is_first:
        log.warning(
            "%s: no part of %s is sharded by itself: all of it is gathered at once on every rank\n"
            "hint: name its blocks by `blocks`, as classes or names",
            settings.strategy,
            type(module).__name__,
        )
    for part in alone:
        fully_shard(part, mesh=mesh, mp_policy=policy, offload_policy=offload, reshard_after_forward=reshard)
    # Never of the rest: the backward pass begins with it.
    of_root = _outermost(policy) if gives_fp32 else policy
    root = fully_shard(module, mesh=mesh, mp_policy=of_root, offload_policy=offload, reshard_after_forward=False)
    return root, alone


def _gather_ahead(module: nn.Module, root: FSDPModule, parts: Sequence[nn.Module], count: int) -> None:
    """Make each part gather the parameters of the next `count` parts ahead; in the backward pass, of those before it.

    `root`, the sharded `module`, gathers the first `count` parts. The order is that of the model, mostly the forward
    pass's. Parameters that are gathered in vain are freed at the end of the backward pass.
    """
    wanted = set(parts)
    order: list[FSDPModule] = [part for part in module.modules() if part in wanted and isinstance(part, FSDPModule)]
    root.set_modules_to_forward_prefetch(order[:count])
    root.set_modules_to_backward_prefetch(order[::-1][:count])
    for place, part in enumerate(order):
        part.set_modules_to_forward_prefetch(order[place + 1 :][:count])
        if place:  # an empty list would be torch's own choice
            part.set_modules_to_backward_prefetch(order[:place][::-1][:count])


class _Syncing:
    """Decides for each micro-batch whether gradients are reduced and parameters freed.

    fsdp and hsdp reduce gradients in the step's last micro-batch only, and keep them whole until then. Under zero2, and
    with `sync_each`, each rank has its part of their sum after every micro-batch.
    """

    def __init__(self, root: FSDPModule, settings: StrategySettings) -> None:
        self._root, self._settings = root, settings
        self._sync = True

    def __call__(self, sync: bool) -> AbstractContextManager[None]:
        if sync != self._sync:  # it walks through all modules
            if self._settings.strategy == "zero2":
                self._root.set_reshard_after_backward(sync)
            elif self._settings.sync_each:
                self._root.set_requires_all_reduce(sync)  # among the copies of hsdp
            else:
                self._root.set_requires_gradient_sync(sync)
            self._sync = sync
        return _NOTHING


def mesh_over(world: World, settings: StrategySettings) -> DeviceMesh:
    """Return the device mesh of all ranks, with the dimensions pp, copy, shard and tp in this order.

    Their sizes are the number of pipeline stages (pp), of copies of the model under hsdp (copy), of shards of the
    parameters (shard), and of ranks that divide each layer (tp). A dimension of size 1 is left out, except shard.
    """
    size = shard_size(settings, world)
    sizes = {SHARDED: size}
    if size < world.dp_size:
        sizes = {COPIES: world.dp_size // size, **sizes}
    if world.tp_size > 1:
        sizes[DIVIDING] = world.tp_size
    of_stage = tuple(sizes)
    if world.stages > 1:
        sizes = {STAGES: world.stages, **sizes}
    with group_connections.watching():
        mesh = init_device_mesh(world.device.type, tuple(sizes.values()), mesh_dim_names=tuple(sizes))
        if world.tp_size > 1:
            # So that a norm over all ranks of a stage is one message.
            mesh[of_stage]._flatten()  # noqa: SLF001 - torch has no public way yet
    return mesh


def _policy(module: nn.Module, dtype: torch.dtype | None) -> MixedPrecisionPolicy:
    """Return the policy that gathers parameters in `dtype` and reduces gradients in fp32.

    The policy changes no type if `dtype` is None, or if the module has BatchNorm or the like.
    """
    if dtype is None or _keeps_statistics(module):
        return MixedPrecisionPolicy()
    return MixedPrecisionPolicy(param_dtype=dtype, reduce_dtype=torch.float32, cast_forward_inputs=False)


def _outermost(policy: MixedPrecisionPolicy) -> MixedPrecisionPolicy:
    """Return the policy of the outermost module: `policy` with an output in fp32, for the loss."""
    if policy.param_dtype is None:
        return policy
    return MixedPrecisionPolicy(
        param_dtype=policy.param_dtype,
        reduce_dtype=policy.reduce_dtype,
        output_dtype=torch.float32,  # what the loss is made of
        cast_forward_inputs=False,
    )


def _keeps_statistics(module: nn.Module) -> bool:
    """Return whether the module or one inside it is a BatchNorm or the like, whose weights must stay in fp32."""
    return any(getattr(part, "running_mean", None) is not None for part in module.modules())
