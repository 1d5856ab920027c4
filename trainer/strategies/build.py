"""Build a strategy: check the model, place, recompute, compile and wrap it, then make the optimizer."""

import logging
import math
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy
from torch.optim import Optimizer

from trainer.checkpoint.generators import restore_generators, state_of_generators
from trainer.errors import BadSettings
from trainer.strategies import baselines
from trainer.strategies.batch_norm import sync_batch_norm
from trainer.strategies.blocks import blocks_of, chosen
from trainer.strategies.compiling import compile_parts
from trainer.strategies.deferred_init import WeightsWanted, agreed, done_without_weights, make_deferred
from trainer.strategies.optimizers import Optimizers, checked, refuse_offloaded, zero1_optimizer
from trainer.strategies.parameters import Parameters, parameters_of
from trainer.strategies.precision import low_dtype, scaler_for, set_fp32
from trainer.strategies.recompute import recompute
from trainer.strategies.replicas import over_all_gpus, replicated, with_first_weights
from trainer.strategies.settings import REPLICAS, SHARDS, StrategySettings, check, shard_size
from trainer.strategies.strategy import Strategy
from trainer.strategies.wrapped import Wrapped
from trainer.world import World

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh

    from trainer.strategies.pipeline import Pipeline
    from trainer.strategies.pipeline_cutting import Cuts
    from trainer.strategies.tensor_parallel import Plan

log = logging.getLogger("trainer")
MakeOptimizer = Callable[[Parameters], Optimizer | Optimizers]


def build(
    model: nn.Module | Callable[[], nn.Module],
    world: World,
    settings: StrategySettings,
    make_optimizer: MakeOptimizer,
    *,
    own_step: bool = False,
    tp_plan: "Plan | None" = None,
    cuts: "Cuts | None" = None,
    restored: bool = False,
    made: nn.Module | None = None,
) -> Strategy:
    """Return the strategy for a model, which is changed in place; all ranks call it and get rank 0's weights.

    `make_optimizer(parameters)` returns one optimizer, or several by name. `own_step`: the user's own training step
    calls the model and steps the optimizers, through `Turns`. `tp_plan`: how layers are divided over tensor-parallel
    ranks, by default the model's own plan. `cuts`: the interface to cut a pipeline by measured time (None: it is not
    measured). `restored`: a checkpoint is about to replace the weights. If all ranks pass it and nothing else depends
    on the weights, they are not initialised, and the strategy is `deferred`; a rank that joins others in the middle of
    a training gets their weights, and decides alone whether to initialise its own. `made`: the model, if it was made
    without weights before. Raises BadSettings for settings, a model or optimizers that do not go together.
    """
    check(settings, world)
    if own_step and world.ranks_per_replica > 1:
        raise BadSettings("mesh: pp and tp do not go with a training step of your own")
    if isinstance(model, nn.Module) or settings.by_parts or world.ranks_per_replica > 1:
        return _build(model, world, settings, make_optimizer, own_step=own_step, tp_plan=tp_plan, cuts=cuts)
    generators = state_of_generators(world.device)
    # Where ranks meet again, the others have the weights, and are just wrapping their model: this happens once.
    module = (make_deferred(model) if made is None else made) if restored or world.rejoined else None
    del made
    if world.rejoined and module is not None and _try_optimizer(module, make_optimizer) is None:
        module = None
    if agreed(world, module is not None) and module is not None:
        try:
            return _build(module, world, settings, make_optimizer, own_step=own_step, tp_plan=tp_plan, deferred=True)
        except WeightsWanted:
            pass
    del module  # before there is another one
    restore_generators(generators, world.device)
    return _build(model, world, settings, make_optimizer, own_step=own_step, tp_plan=tp_plan)


def _build(
    model: nn.Module | Callable[[], nn.Module],
    world: World,
    settings: StrategySettings,
    make_optimizer: MakeOptimizer,
    *,
    own_step: bool,
    tp_plan: "Plan | None",
    cuts: "Cuts | None" = None,
    deferred: bool = False,
) -> Strategy:
    """Build the strategy that `settings` asks for; with `deferred` the weights are not initialised.

    `make_optimizer(parameters)` returns one optimizer, or several by name. With `own_step` the user's training step may
    call any part of the model. `tp_plan` says how layers are divided (None: by the model's own plan), and `cuts` is the
    interface to cut a pipeline by measured time (None: it is not measured). Raises WeightsWanted on all ranks if
    something depends on values of the weights that are not initialised.
    """
    module, rows = _make_module(model, world, settings)
    if rows is None:
        _check_module(module)
    if not module.training:
        module.train()
    set_fp32(settings.precision)
    if settings.cudnn_benchmark:
        torch.backends.cudnn.benchmark = True
    if settings.sync_batchnorm:
        sync_batch_norm(module, world)
    pipeline = _cut_into_stages(module, world, settings, rows, cuts)
    if rows is None and not settings.offload and pipeline is None:  # else block by block, or stage by stage
        module.to(world.device)
    division = _divide_layers(module, world, settings, tp_plan, pipeline)
    blocks = _blocks(module, world, settings)
    if settings.activation_checkpointing:
        for block in blocks[:: settings.recompute_every]:
            recompute(block, settings.recompute_keeps)
    if settings.compile:
        compile_parts(_parts_to_compile(module, blocks, settings, pipeline))
    wrapped = (
        with_first_weights(module, world, deferred=deferred)
        if own_step
        else _wrap(module, blocks, world, settings, rows, division, pipeline, deferred=deferred)
    )
    scaler = scaler_for(settings.precision, world.device)
    if pipeline is not None:
        pipeline.finish_setup(module, nullcontext if division is None else division.around, scaler)
    if deferred and not world.rejoined:  # else it has been tried
        made = _try_optimizer(module, make_optimizer)
        if not agreed(world, made is not None) or made is None:
            raise WeightsWanted
    else:
        made = make_optimizer(parameters_of(module))
    optimizers = checked(made, module, world, own_step=own_step)
    if settings.offload:
        refuse_offloaded(optimizers, world, shard_size(settings, world))
    if settings.strategy == "zero1" and world.size > 1:
        optimizers = {name: zero1_optimizer(optimizer) for name, optimizer in optimizers.items()}
    return Strategy(settings, world, module, wrapped, optimizers, scaler, len(blocks), deferred, pipeline)


def _try_optimizer(module: nn.Module, make_optimizer: MakeOptimizer) -> Optimizer | Optimizers | None:
    """Return the optimizer or optimizers that `make_optimizer` makes for the parameters of `module`.

    Returns None if making them reads weights that are still to be loaded, or draws random numbers. The caller then
    makes the model again with its first weights.
    """
    return done_without_weights(module, lambda: make_optimizer(parameters_of(module)))


@dataclass(frozen=True, slots=True)
class EvaluatedModel:
    """A model for evaluation without training, as this rank has it.

    Weights are loaded into `module`. Batches are passed to `pipeline` if the model is divided into stages, else to
    `module`.
    """

    module: nn.Module
    pipeline: "Pipeline | None" = None  # None: the model is whole


def build_for_evaluation(
    model: nn.Module | Callable[[], nn.Module],
    world: World,
    settings: StrategySettings,
    *,
    tp_plan: "Plan | None" = None,
    cuts: "Cuts | None" = None,
) -> EvaluatedModel:
    """Return the model for evaluation: in stages, divided and sharded as the settings say, or whole.

    `tp_plan` says how layers are divided (None: as the model itself says). `cuts` is the interface to cut a pipeline by
    measured time (None: it is cut by layers). All ranks call it. With a sharded or divided model, all ranks must call
    the model together and equally often. The output of a divided model is whole on each rank. Raises BadSettings if the
    settings and the model do not go together.
    """
    if settings.strategy not in SHARDS and world.ranks_per_replica == 1:
        return EvaluatedModel((model if isinstance(model, nn.Module) else model()).to(world.device).eval())
    check(settings, world)
    module, rows = _make_module(model, world, settings)
    pipeline = _cut_into_stages(module, world, settings, rows, cuts)
    if rows is None and not settings.offload and pipeline is None:
        module.to(world.device)
    division = _divide_layers(module, world, settings, tp_plan, pipeline)
    _wrap(module, _blocks(module, world, settings), world, settings, rows, division, pipeline)
    if pipeline is not None:
        pipeline.finish_setup(module, nullcontext, None)
    elif division is not None:
        from trainer.strategies.tensor_parallel import return_whole_outputs  # late: with the other imports of a mesh

        return_whole_outputs(module)
    return EvaluatedModel(module.eval(), pipeline)


def summary(strategy: Strategy) -> str:
    """Return a line for the log: `fsdp, 2 x cpu, bf16, 11.2M parameters, 8 blocks`."""
    settings, world, pipeline = strategy.settings, strategy.world, strategy.pipeline
    size = shard_size(settings, world)
    cuda = world.device.type == "cuda"
    parts = [
        settings.strategy if size == world.dp_size else f"{settings.strategy} ({world.dp_size // size} copies)",
        *([pipeline.described()] if pipeline is not None else []),
        *([f"tp {world.tp_size}"] if world.tp_size > 1 else []),
        f"{world.size} x {torch.cuda.get_device_name(world.device) if cuda else world.device.type}",
        settings.precision,
        f"{_short(sum(parameter.numel() for parameter in strategy.module.parameters()))} parameters",
    ]
    if settings.strategy in SHARDS:
        parts.append(f"{strategy.blocks} blocks")
    if settings.offload:
        parts.append("offloaded")
    if settings.clip_value is not None:
        parts.append(f"values clipped at {settings.clip_value:g}")
    if settings.clip_norm is not None:
        parts.append(f"clipped at {settings.clip_norm:g}")
    if settings.activation_checkpointing:
        parts.append(f"{math.ceil(strategy.blocks / settings.recompute_every)} blocks recomputed")
    if settings.compile:
        parts.append("compiled")
    return ", ".join(parts)


def _make_module(
    model: nn.Module | Callable[[], nn.Module], world: World, settings: StrategySettings
) -> tuple[nn.Module, dict[str, Tensor] | None]:
    """Return the model, and None or {parameter name: the rows of it that this rank keeps}.

    The rows are returned with the setting `by_parts`, by which no rank ever has the whole model in memory: the
    parameters are then on the meta device, and BadSettings is raised if `model` is not a function that makes it.
    """
    if not settings.by_parts:
        return (model if isinstance(model, nn.Module) else model()), None
    if isinstance(model, nn.Module):
        raise BadSettings(
            "by_parts: expected a function that makes the model, got the model\nhint: model=lambda: MyModel()"
        )
    from trainer.strategies.paging import made_by_parts  # late: only some want it

    return made_by_parts(model, world, shard_size(settings, world) if world.stages == 1 else world.size)


def _check_module(module: nn.Module) -> None:
    """Raise BadSettings for a model without parameters to train, or with some that have no values yet.

    Parameters on the meta device, and parameters and buffers of lazy modules, have none yet.
    """
    for name, part in module.named_modules():
        tensors = [*part.parameters(recurse=False), *part.buffers(recurse=False)]
        if any(map(is_lazy, tensors)):
            raise BadSettings(
                f"model: {name or 'it'} is a {type(part).__name__}, whose weights have no shape before a first batch\n"
                f"hint: {type(part).__name__.removeprefix('Lazy')} with its sizes, or call the model where it is made"
            )
    if not any(parameter.requires_grad for parameter in module.parameters()):
        raise BadSettings(f"model: {type(module).__name__} has no parameter to train")
    empty = [name for name, parameter in module.named_parameters() if parameter.is_meta]
    if empty:
        raise BadSettings(f"model: expected values for all parameters, {empty[0]} is on the meta device")


def _blocks(module: nn.Module, world: World, settings: StrategySettings) -> list[nn.Module]:
    """Return the blocks, such as a transformer's layers, that are sharded, recomputed or compiled separately.

    They are those that the setting `blocks` names, else those that blocks_of() finds. The list is empty if `blocks` is
    empty and no other setting needs them. Raises BadSettings if there is no block to recompute.
    """
    by_blocks = (
        settings.activation_checkpointing or settings.strategy in SHARDS or (settings.compile and world.stages > 1)
    )
    if not settings.blocks and not by_blocks:
        return []
    blocks = blocks_of(module, settings.blocks)
    if settings.activation_checkpointing and not blocks:
        raise BadSettings(
            f"activation_checkpointing: found no blocks in {type(module).__name__} to recompute\n"
            "hint: name them by `blocks`, or keep them in a ModuleList or Sequential"
        )
    return blocks


def _parts_to_compile(
    module: nn.Module, blocks: list[nn.Module], settings: StrategySettings, pipeline: "Pipeline | None"
) -> list[nn.Module]:
    """Return the modules to compile separately: the blocks if the user named them or they are sharded, else `module`.

    In a pipeline it is always the blocks of this rank's stages.
    """
    if pipeline is not None:
        here = {part for stage in pipeline.stages.values() for part in stage.modules()}
        return [block for block in blocks if block in here]
    return blocks if blocks and (settings.blocks or settings.strategy in SHARDS) else [module]


def _cut_into_stages(
    module: nn.Module,
    world: World,
    settings: StrategySettings,
    rows: dict[str, Tensor] | None,
    cuts: "Cuts | None" = None,
) -> "Pipeline | None":
    """Cut the model into stages, or return None without pipeline parallelism.

    `rows` is None unless the model's parameters are on the meta device, without values; then it has, by parameter name,
    the values of the rows that this rank keeps of each. `cuts` gives the cuts that were saved earlier and a sample to
    measure with; without it nothing is measured.
    """
    if world.stages == 1:
        return None
    from trainer.strategies.pipeline import staged  # late: meshes of ranks take a while to import

    return staged(module, world, settings, rows, cuts)


@dataclass(frozen=True, slots=True)
class _Division:
    """A model whose layers are divided over ranks (tensor parallelism), with the mesh of these ranks.

    `around` makes a context in which forward and backward passes run: torch's `loss_parallel` if the vocabulary is
    divided, else one that does nothing.
    """

    mesh: "DeviceMesh"
    around: Callable[[], AbstractContextManager[None]]


def _divide_layers(
    module: nn.Module, world: World, settings: StrategySettings, plan: "Plan | None", pipeline: "Pipeline | None"
) -> _Division | None:
    """Divide the model's layers over the tensor-parallel ranks, in place; return None without tensor parallelism.

    `plan` is the user's and says how to divide each layer; without it the model's own is used. A `pipeline` brings the
    mesh of ranks; without one it is made. Raises BadSettings for a plan of the user without tensor parallelism.
    """
    if world.tp_size == 1:
        if plan and not settings.mesh:
            raise BadSettings("tp_plan: expected with a mesh that has tp, got it without\nhint: mesh='tp=2'")
        return None
    from torch.distributed.tensor.parallel import loss_parallel  # late: half a second, and only some want it

    from trainer.strategies import tensor_parallel  # late: the same
    from trainer.strategies.shards import DIVIDING, mesh_over  # late: FSDP2 takes half a second to import

    if world.local_size % world.tp_size and world.is_first:
        log.warning(
            "mesh: tp=%d crosses nodes, %d ranks on each: every layer waits for the network\n"
            "hint: a tp that divides the ranks of a node",
            world.tp_size,
            world.local_size,
        )
    mesh = mesh_over(world, settings) if pipeline is None else pipeline.mesh
    found = tensor_parallel.plan_for(module, plan)
    tensor_parallel.divide(module, mesh[DIVIDING], found, alike=pipeline is not None)
    return _Division(mesh, loss_parallel if tensor_parallel.has_divided_vocabulary(found) else nullcontext)


def _wrap(
    module: nn.Module,
    blocks: Sequence[nn.Module],
    world: World,
    settings: StrategySettings,
    rows: dict[str, Tensor] | None,
    division: _Division | None,
    pipeline: "Pipeline | None",
    *,
    deferred: bool = False,
) -> Wrapped:
    """Wrap the model for its strategy, and return it with the contexts in which its passes have to run.

    With `deferred` rank 0 does not send its weights, because all ranks are about to load the same ones. `blocks` are
    the parts to shard separately. `rows` has, if the model is on the meta device, this rank's rows of each parameter by
    name, else it is None. `division` is None without tensor parallelism, `pipeline` without stages.
    """
    units = chosen(module, settings.units, "units") if settings.units else []
    parts = list(dict.fromkeys([*units, *blocks]))
    if pipeline is not None:
        if settings.strategy in SHARDS:
            pipeline.shard(module, parts)
        return Wrapped(module)
    if settings.strategy in REPLICAS:
        return replicated(module, world, settings, deferred=deferred)
    if settings.strategy in SHARDS:
        from trainer.strategies.shards import sharded  # late: FSDP2 takes half a second to import

        if division is None:
            return sharded(module, parts, world, settings, rows, deferred=deferred)
        return replace(sharded(module, parts, world, settings, mesh=division.mesh), around=division.around)
    if settings.strategy == "dp":
        return over_all_gpus(module, world, low_dtype(settings.precision))
    if (many := baselines.devices()) is not None:
        baselines.place_on_devices(module, blocks_of(module, settings.blocks), many, world.device)
    return Wrapped(module)


def _short(count: int) -> str:
    """Return a count as a short text, such as `11.2M` or `950`."""
    for size, letter in ((10**9, "B"), (10**6, "M"), (10**3, "k")):
        if count >= size:
            return f"{count / size:.1f}{letter}"
    return str(count)
