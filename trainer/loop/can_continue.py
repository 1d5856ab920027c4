"""List why ranks cannot continue in place (in their running processes) after another rank was killed."""

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from types import FunctionType, ModuleType
from typing import Any

from torch import nn

from trainer.data.iterable import is_iterable
from trainer.data.loaders import is_loader
from trainer.loop.loop import Loop
from trainer.loop.settings import Settings
from trainer.strategies.settings import PARTITIONED
from trainer.wire import Launched

_FREE = ("ddp", "hsdp")
_NOT_ON_GPUS = ("zero1", "hsdp")  # the one sends weights at the end of an update, the other has several groups
_NCCL_HEEDS = "TORCH_NCCL_ASYNC_ERROR_HANDLING"
_LOOKED_AT = 3  # steps
_WARM, _TIMED, _FELT = 5, 20, 0.01  # steps that are not timed, and those that are; a part of their time
_BUFFERS_BYTES = 1 << 20  # that are noted in each step
_PLAIN = (bool, int, float, str)
# Settings by which a process has more than what is loaded, or handed over to another rank.
_NOT_LOADED = ("lr_find", "profile", "fast_dev_run", "count_flops", "spike_factor", "mesh")
_NOT_HANDED_OVER = (*_NOT_LOADED, "compile", "keep_best", "ema")


class PlainState:
    """A search for numbers and strings that change while training although no checkpoint has them.

    They are plain attributes of the model's modules, or of the loss. A new rank would lack their values.
    """

    def __init__(self) -> None:
        self._steps, self._last = 0, dict[str, str]()

    def changing(self, **modules: object) -> str:
        """Return the name of a value that changed since the last call, such as `model.blocks.0.count`, or "".

        It is called once after each step with the objects to look at, by name. The first call only records the values,
        as modules may set some in the first step that stay. After the third call the result is always "".
        """
        if self._steps == _LOOKED_AT:
            return ""
        now = {
            ".".join(filter(None, (what, path, name))): repr(value)
            for what, root in modules.items()
            for path, one in _objects_of(root)
            for name, value in vars(one).items()
            if isinstance(value, _PLAIN)
        }
        before, self._last, self._steps = self._last, now, self._steps + 1
        if self._steps == 1:
            return ""
        return next((name for name, value in now.items() if name in before and before[name] != value), "")


def _objects_of(root: object) -> Iterator[tuple[str, object]]:
    """Yield (name in `root`, object) for each object in `root` whose attributes may be numbers or strings that change.

    These are a module's submodules, or `root` itself if it is no module; then the name is "". A partial counts as its
    function, and a bound method as its object. Nothing is yielded for a function, a class or a Python module.
    """
    while isinstance(root, partial):
        root = root.func
    root = getattr(root, "__self__", root)
    if isinstance(root, nn.Module):
        yield from root.named_modules()
    elif hasattr(root, "__dict__") and not isinstance(root, FunctionType | ModuleType | type):
        yield "", root


class Pace:
    """Measures which share of the first steps' time is spent on the snapshots that continuing in place needs.

    It reports once if that is over 1 %, which is too much to continue in place without being asked to.
    """

    def __init__(self) -> None:
        self._steps, self._began, self._spent = 0, 0.0, 0.0

    @contextmanager
    def measuring(self) -> Iterator[None]:
        """Add this thread's CPU time inside the context to the time spent on snapshots."""
        began = time.thread_time()
        try:
            yield
        finally:
            self._spent += time.thread_time() - began

    def count_step(self, now: float) -> bool:
        """Count a step that ended at time `now` (in seconds, of any clock that runs steadily).

        Returns True once, after 25 steps, if snapshots took over 1 % of the last 20, else False.
        """
        self._steps += 1
        if self._steps == _WARM:
            self._began, self._spent = now, 0.0
        return self._steps == _WARM + _TIMED and self._spent > _FELT * (now - self._began)


def reasons(
    loop: Loop, settings: Settings, dataset: Any, launched: Launched, *, met_once: bool, loads: bool, made: bool
) -> Iterator[str]:
    """Yield as text each reason why this training cannot continue in place after a rank is killed; none if it can.

    `dataset` is the training data, and `launched` has the settings that launch gave this rank. `met_once`: launch has
    connected the ranks for this training alone, and they can connect again. `loads`: instead of getting state from
    other ranks, all ranks load the newest checkpoint or snapshot. `made`: a function made the model, and can make it
    again.
    """
    if launched.in_place_by_default and not _is_free(loop, loads=loads):
        yield "recovery.mode is not hot"
    yield from _rank_reasons(loop, launched, met_once=met_once, made=made)
    if loop.own_step is not None:
        yield "the training step is the user's own"
    if is_iterable(dataset) or is_loader(dataset):
        yield "the data is a stream, or comes from a loader"
    for name in _NOT_LOADED if loads else _NOT_HANDED_OVER:
        if getattr(settings, name) not in (None, False):
            yield f"{name} is set"
    if launched.disks_apart:
        yield "each node has a disk of its own"
    for module in () if loads else loop.strategy.module.modules():
        if type(module).get_extra_state is not nn.Module.get_extra_state:
            yield f"{type(module).__name__} has extra state"


def _is_free(loop: Loop, *, loads: bool) -> bool:
    """Return whether continuing in place loses no step and takes almost no time.

    That is so on a CPU, with a strategy that has copies of the model (ddp, hsdp), at most 1 MB of buffers, and no
    callback of the user with an `on_end`. With `loads`, all ranks load a saved state, which loses steps, so the result
    is False.
    """
    strategy, cpu = loop.strategy, loop.training.world.device.type == "cpu"
    small = sum(one.nbytes for one in strategy.buffers) <= _BUFFERS_BYTES
    return strategy.settings.strategy in _FREE and not loads and cpu and small and not loop.callbacks.acts_on_end


def _rank_reasons(loop: Loop, launched: Launched, *, met_once: bool, made: bool) -> Iterator[str]:
    """Yield as text the reasons against continuing in place that lie in the strategy or the number of ranks.

    `launched` has the settings that launch gave this rank. `met_once`: launch has connected the ranks for this training
    alone, and they can connect again. `made`: a function made the model, and can make it again.
    """
    world, strategy = loop.training.world, loop.strategy
    if not met_once:
        yield "the ranks had connected before, or the script connected them itself, or they are too many"
    alone = world.size == 1 and not (launched.rank_states_copied and strategy.settings.strategy in _FREE)  # for good
    if strategy.settings.strategy not in ("ddp", *PARTITIONED) or alone:
        yield f"strategy {strategy.settings.strategy} on {world.size} ranks: expected one for several ranks, on several"
    if strategy.settings.strategy in PARTITIONED and not made:
        yield "the model was given, and cannot be made again: expected a function that makes it"
    if strategy.pipeline is not None:
        yield "the model is in pipeline stages, with which continuing in place is not supported"
    if world.device.type != "cpu" and strategy.settings.strategy in _NOT_ON_GPUS:
        yield f"strategy {strategy.settings.strategy} on {world.device.type}: expected ddp, zero2 or fsdp, or CPUs"
    if world.backend == "nccl" and (heeds := os.environ.get(_NCCL_HEEDS)) != "0":
        yield f"{_NCCL_HEEDS}={heeds or ''}: expected 0, or torch ends this process when another rank ends"
