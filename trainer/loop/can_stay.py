"""Why a training could not go on in place, where a rank was killed, and all ranks have to be started anew."""

import os
from collections.abc import Iterator
from typing import Any

import torch

from trainer.data.iterable import is_iterable
from trainer.data.loaders import is_loader
from trainer.loop.loop import Loop
from trainer.loop.settings import Settings
from trainer.strategies.settings import REPLICAS, SHARDS
from trainer.wire import Launched

_NOT_ON_GPUS = ("zero1", "hsdp")  # the one notes its share in the middle of each step, the other has several groups
_NCCL_HEEDS = "TORCH_NCCL_ASYNC_ERROR_HANDLING"
# Settings by which a process has more than what is loaded, or handed over to another rank.
_NOT_LOADED = ("lr_find", "profile", "fast_dev_run", "count_flops", "spike_factor", "mesh")
_NOT_HANDED_OVER = (*_NOT_LOADED, "compile", "keep_best", "ema")


def reasons(
    loop: Loop, settings: Settings, dataset: Any, launched: Launched, *, met_once: bool, loads: bool, made: bool
) -> Iterator[str]:
    """Why what a step does could not be undone exactly, or not be handed to another rank.

    `met_once`: the ranks have met for this training, and can meet anew. `loads`: nothing is handed over, all go back to
    what was saved. `made`: the model was, by a function.
    """
    world, strategy = loop.training.world, loop.strategy
    if not met_once:
        yield "the ranks had met before, or by the script's own doing, or are too many"
    alone = world.size == 1 and not (launched.notes_copied and strategy.settings.strategy == "ddp")  # for good
    if strategy.settings.strategy not in REPLICAS + SHARDS or alone:
        yield f"strategy {strategy.settings.strategy} on {world.size} ranks: expected one for several ranks, on several"
    if strategy.settings.strategy in SHARDS and not made:
        yield "the model was given, and its shards know their ranks: expected a function that makes it"
    if strategy.pipeline is not None:
        yield "the model is in stages, which have not been shown to go on in place"
    if world.device.type != "cpu" and strategy.settings.strategy in _NOT_ON_GPUS:
        yield f"strategy {strategy.settings.strategy} on {world.device.type}: expected ddp, zero2 or fsdp, or CPUs"
    if world.backend == "nccl" and (heeds := os.environ.get(_NCCL_HEEDS)) != "0":
        yield f"{_NCCL_HEEDS}={heeds or ''}: expected 0, or torch acts on another rank's end"
    if loop.own_step is not None:
        yield "it has a training step of its own"
    if is_iterable(dataset) or is_loader(dataset):
        yield "its data is a stream, or comes by a loader"
    for name in _NOT_LOADED if loads else _NOT_HANDED_OVER:
        if getattr(settings, name) not in (None, False):
            yield f"{name} is set"
    if launched.disks_apart:
        yield "each node has a disk of its own"
    for module in () if loads else strategy.module.modules():
        if type(module).get_extra_state is not torch.nn.Module.get_extra_state:
            yield f"{type(module).__name__} has extra state"
