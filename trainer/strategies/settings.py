"""The settings of a strategy, and checks that they work together on a given world of ranks."""

import difflib
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import nn

from trainer.errors import BadSettings
from trainer.strategies.mesh import Mesh
from trainer.strategies.pipeline_cutting import BY_LAYERS
from trainer.strategies.pipeline_schedule import SCHEDULES
from trainer.world import World

NAMES = ("none", "dp", "ddp", "zero1", "zero2", "fsdp", "hsdp")
PRECISIONS = ("fp32", "tf32", "bf16", "fp16")

ALONE = ("none", "dp")  # one process
REPLICAS = ("ddp", "zero1")  # each rank has all parameters
SHARDS = ("zero2", "fsdp", "hsdp")  # each rank has its part of them: FSDP2
PARTITIONED = ("zero1", *SHARDS)  # each rank has a part of the optimizer's state
SUMS_ONCE = ("fsdp", "hsdp")  # those that reduce gradients once a step by default

_ONLY_WITH = {
    "units": SHARDS,
    "by_parts": SHARDS,
    "offload": SHARDS,
    "sync_each": SUMS_ONCE,
    "reshard": SUMS_ONCE,
    "prefetch": SHARDS,
    "bucket_mb": REPLICAS,
    "sync_batchnorm": REPLICAS + SHARDS,
    "shard_size": ("hsdp",),
}

_NOT_DIVIDED = {  # with ranks that work on the same samples, and why
    "offload": "as the host computes norms and optimizer steps only of FSDP's shards",
    "sync_batchnorm": "which would count the same samples several times",
}
_NOT_WITHOUT_STAGES = {"by_parts": "which shards layers by rows, while tp divides them in other ways"}
_NOT_STAGED = {  # in a pipeline
    "bucket_mb": "where gradients are added up in one message, after the last part of a batch",
    "unused_parameters": "where every part is called, and none is waited for",
    "sync_each": "where gradients are whole until the last part of a batch has come back",
    "prefetch": "where parameters are gathered once for all parts of a batch",
}
_STAGED = ("ddp", *SHARDS)  # each rank has all parameters of its stage, or its part of them

Choice = tuple[str, ...] | Callable[[str, nn.Module], bool]  # of parts: classes, names (`layers.*`), or a rule


@dataclass(frozen=True, slots=True)
class StrategySettings:
    """The settings of how work is divided over ranks, and of arithmetic; each is a setting of Trainer too."""

    strategy: str = "ddp"
    precision: str = "fp32"  # the number format of calculations
    clip_norm: float | None = None  # limit of the norm of all gradients together
    clip_value: float | None = None  # of each number of a gradient by itself, before clip_norm
    activation_checkpointing: bool = False
    recompute_every: int = 1  # one block in so many is recomputed
    recompute_keeps: tuple[str, ...] = ()  # operations of recomputed blocks whose results are kept all the same
    compile: bool = False
    shard_size: int | None = None  # hsdp: ranks that share one copy; None: those of a node
    mesh: str | Mesh | None = None  # how many ranks work on the same samples, as `tp=2`
    pp_schedule: str = "1f1b"  # mesh with pp: in which order a stage works on micro-batches
    pp_cut: str = BY_LAYERS  # mesh with pp: layers, time, or the names of the parts with which later stages begin
    pp_microbatches: int | None = None  # pp: into how many parts a rank's samples go; None: 4 times the stages
    unused_parameters: bool = False  # ddp, zero1: a step's loss may leave some parameters unused
    blocks: Choice = ()  # modules to shard, recompute and compile each by itself; empty: those found in containers
    units: Choice = ()  # more modules to shard each by itself, but not to recompute: an embedding, a head
    sync_each: bool = False  # fsdp, hsdp: reduce-scatter gradients after every micro-batch
    by_parts: bool = False  # make the model part by part: no rank ever holds all of it
    prefetch: int | None = None  # sharded: gather so many parts ahead of the one at work; None: as torch does
    reshard: bool = True  # fsdp, hsdp: free gathered parameters after a block's forward pass
    offload: bool = False  # sharded: keep parameters, gradients and the optimizer's state in the host's memory
    sync_batchnorm: bool = False  # BatchNorm over the samples of all ranks
    cudnn_benchmark: bool = False  # time cuDNN's algorithms for each new shape
    bucket_mb: float | None = None  # ddp, zero1: gradients that are sent at once; None: torch's own 25


def needs_group(strategy: str) -> bool:
    """Return whether the strategy needs a process group even for one rank (`join(group=True)`): whether it shards."""
    return strategy in SHARDS


def check(settings: StrategySettings, world: World) -> None:
    """Raise BadSettings with all problems of the settings on this world."""
    problems = list(_problems(settings, world))
    if problems:
        raise BadSettings("\n".join(problems))


def shard_size(settings: StrategySettings, world: World) -> int:
    """Return how many ranks hold one copy of the parameters between them."""
    if settings.strategy != "hsdp":
        return world.dp_size
    here = min(world.local_size, world.ranks_per_stage) // world.tp_size  # of one stage, on a node
    return here if settings.shard_size is None else settings.shard_size


def _problems(settings: StrategySettings, world: World) -> Iterator[str]:
    """Yield a message for every setting that cannot work."""
    if settings.strategy not in NAMES:
        yield _unknown("strategy", settings.strategy, NAMES)
    else:
        yield from _world_problems(settings, world)
    if settings.precision not in PRECISIONS:
        yield _unknown("precision", settings.precision, PRECISIONS)
    elif settings.precision in ("bf16", "fp16"):
        yield from _precision_problems(settings.precision, world.device)
    for name in ("clip_norm", "clip_value", "bucket_mb"):
        value = getattr(settings, name)
        if value is not None and not (math.isfinite(value) and value > 0):
            yield f"{name}: expected a number above 0, got {value}"
    yield from _unused_settings(settings)
    yield from _mesh_problems(settings, world)
    if settings.prefetch is not None and settings.prefetch < 1:
        yield f"prefetch: expected a whole number of at least 1, got {settings.prefetch}"
    if settings.cudnn_benchmark and torch.are_deterministic_algorithms_enabled():
        yield "cudnn_benchmark: expected without deterministic: which way is the fastest differs from run to run"
    if settings.offload and settings.precision == "fp16":
        yield "offload: does not go with precision fp16, whose scaler looks at gradients on GPUs\nhint: use bf16"


def _mesh_problems(settings: StrategySettings, world: World) -> Iterator[str]:
    """Yield a message for each setting that does not go with the pipeline or tensor parallelism of `world`.

    Yield one also for a setting that needs one of these and is set without, and for an unknown `pp_schedule`.
    """
    staged, divided = world.stages > 1, world.tp_size > 1
    dimensions = " and ".join(name for name, there in (("pp", staged), ("tp", divided)) if there)
    others = _NOT_STAGED if staged else _NOT_WITHOUT_STAGES
    for name, why in (_NOT_DIVIDED | others).items() if dimensions else ():
        if getattr(settings, name):
            yield f"{name}: does not go with a mesh that has {dimensions}, {why}"
    wanted = _STAGED if staged else SHARDS
    if settings.mesh and settings.strategy not in wanted:
        with_pp = "with pp " if staged else ""
        hint = "\nhint: zero2 shards the optimizer, too" if staged and settings.strategy == "zero1" else ""
        yield f"mesh: {with_pp}expected with strategy {', '.join(wanted)} only, got it with {settings.strategy}{hint}"
    if settings.pp_schedule not in SCHEDULES:
        yield _unknown("pp_schedule", settings.pp_schedule, SCHEDULES)
    plain = StrategySettings()
    for name in ("pp_schedule", "pp_cut", "pp_microbatches"):
        if getattr(settings, name) != getattr(plain, name) and not staged:
            yield f"{name}: expected with a mesh that has pp only, got it without"


def _unused_settings(settings: StrategySettings) -> Iterator[str]:
    """Yield a message for each setting that differs from its default, but has no effect.

    Such a setting is for other strategies than the chosen one, or for activation checkpointing, which is off.
    """
    plain = StrategySettings()
    for name in ("recompute_every", "recompute_keeps"):
        if getattr(settings, name) != getattr(plain, name) and not settings.activation_checkpointing:
            yield f"{name}: expected with activation_checkpointing only, got it without"
    for name, strategies in _ONLY_WITH.items():
        if getattr(settings, name) != getattr(plain, name) and settings.strategy not in strategies:
            yield f"{name}: expected with strategy {', '.join(strategies)} only, got it with {settings.strategy}"


def _world_problems(settings: StrategySettings, world: World) -> Iterator[str]:
    """Yield each reason why the strategy does not fit this world.

    One is that the strategy trains in a single process and the world has several ranks.
    """
    name = settings.strategy
    if name in ALONE and world.size > 1:
        yield f"strategy: {name} trains in one process, got a world of {world.size}\nhint: use ddp, or start one rank"
    elif world.backend is None and (world.size > 1 or needs_group(name)):
        yield f"strategy: {name} expected a process group, got none\nhint: make the world by join(group=True)"
    if name == "dp" and settings.compile:
        yield "compile: does not go with strategy dp, whose copies of the model it cannot follow\nhint: use ddp"
    if name == "hsdp":
        size, where = shard_size(settings, world), "shard_size"
        if settings.shard_size is None:
            where = "shard_size: the ranks of a node"
        if size < 1 or world.dp_size % size:
            yield f"{where}: expected a divisor of the world's {world.dp_size} ranks, got {size}"


def _precision_problems(precision: str, device: torch.device) -> Iterator[str]:
    """Yield the reason why the device does not support bf16 or fp16, if there is one."""
    if not torch.amp.is_autocast_available(device.type):
        yield f"precision: {precision} does not exist on {device}\nhint: use fp32"
    elif precision == "bf16" and device.type == "cuda" and not torch.cuda.is_bf16_supported(including_emulation=False):
        yield f"precision: {torch.cuda.get_device_name(device)} has no bf16\nhint: use fp16"


def _unknown(key: str, got: object, known: tuple[str, ...]) -> str:
    """Return the message about a value that is not one of the known ones."""
    near = difflib.get_close_matches(str(got), known, n=1)
    hint = f"\nhint: did you mean {near[0]}?" if near else ""
    return f"{key}: expected one of {', '.join(known)}, got {got!r}{hint}"
