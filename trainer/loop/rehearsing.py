"""Run passes before the first step without changing the weights: to count operations, find a rate, or warm up."""

import logging
import os
from collections.abc import Callable, Generator
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import Dataset

from trainer.data import Batch
from trainer.data.iterable import is_iterable
from trainer.errors import BadSettings
from trainer.loop.flops import Flops, counted
from trainer.loop.loop import Loop
from trainer.loop.losses import LossFunction, answer_of
from trainer.loop.lr_finder import learning_rate_finder, put_back
from trainer.loop.placing import Placing
from trainer.loop.settings import Settings
from trainer.loop.train_data import train_data
from trainer.strategies.precision import autocasting, low_dtype
from trainer.world import World, set_threads

log = logging.getLogger("trainer")


def count_operations(loop: Loop, settings: Settings) -> Flops:
    """Return the floating-point operations that a sample takes, counted on the next micro-batch; all ranks call it.

    It is called before weights are loaded. Afterwards the data is at the position where it was.
    """
    place = loop.data.state_dict()
    used: list[Batch] = []

    def run_micro_batch() -> Tensor:
        """Return the loss of the first micro-batch, the same one each time."""
        if not used:
            used.append(next(loop.data.epoch_batches()))
        return loop.answer(used[0]).loss

    flops, message = counted(loop.strategy, settings, lambda: used[0].samples, run_micro_batch)
    loop.training.say(message)
    loop.data.load_state_dict(place)
    return flops


def find_rate(loop: Loop) -> None:
    """Find a learning rate, start the schedule from it, and log it.

    Steps are tried with rising rates until the loss diverges, and the rate at which it fell fastest is chosen; then the
    model, optimizer and data are put back. Raises BadSettings with several optimizers, or if the schedule ignores the
    optimizer's learning rate.
    """
    strategy, device = loop.strategy, loop.training.world.device
    schedule, *others = loop.schedules.each.values()
    if others:
        raise BadSettings(
            f"lr_find: expected one optimizer, got {', '.join(strategy.optimizers)}\nhint: set their rates yourself"
        )
    if not schedule.follows_the_rate:
        raise BadSettings(
            "lr_find: the schedule has a learning rate of its own, and one that is found would not be used\n"
            "hint: make it from optimizer.param_groups[0]['lr'], as OneCycleLR's max_lr; or lr_find=False"
        )

    def endless() -> Generator[Batch, None, None]:
        """Yield batches of epoch after epoch."""
        while True:
            yield from loop.data.epoch_batches()

    skips = strategy.skips.state_dict()
    with put_back(strategy.module, strategy.optimizer, strategy.scaler, loop.data, device):
        batches = endless()
        sweep = learning_rate_finder(lambda: loop.try_step(batches), strategy.optimizer)
        batches.close()
    strategy.skips.load_state_dict(skips)
    schedule.start_from(sweep.suggestion)
    loop.training.say(f"learning rate {sweep.suggestion:.3g}: where the loss fell fastest of {len(sweep.rates)} tried")


def touch(module: nn.Module) -> None:
    """Fill the parameters with zeros, so that their memory is allocated before the weights arrive."""
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.zero_()


def try_first_pass(
    module: nn.Module,
    settings: Settings,
    loss: LossFunction,
    dataset: Any,
    collate: Callable[[list[Any]], Any] | None,
) -> None:
    """Run a first pass on the CPU in a reserve process, which waits to replace a lost rank.

    It loads code and touches memory ahead of time; its results are dropped. Nothing is done if ranks use GPUs or the
    data is a stream. A worker process fetches the samples, so that the data's position stays unchanged.
    """
    device = torch.device("cpu")
    on_gpu = torch.cuda.is_available() if settings.device is None else settings.device != "cpu"
    if on_gpu or not isinstance(dataset, Dataset) or is_iterable(dataset):
        return
    size = int(os.environ.get("WORLD_SIZE") or 1)
    set_threads(os.environ, size)
    touch(module)
    data = train_data(replace(settings, workers=1), dataset, collate, World(0, size, 0, 1, device))
    try:
        batches = data.epoch_batches()
        batch = next(batches, None)
        batches.close()
        if batch is not None:
            with autocasting(device, low_dtype(settings.precision)):
                answer = answer_of(loss(module.train(), Placing(device)(batch.data)))
            answer.loss.backward()
    except Exception as error:  # noqa: BLE001 - the user's code, with weights that nobody would give it
        log.warning("the first pass of the reserve process failed: %s: %s", type(error).__name__, error)
    finally:
        data.close()
