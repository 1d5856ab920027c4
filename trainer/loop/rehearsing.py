"""Passes before the first step that leave no trace: to count operations, to find a learning rate."""

from collections.abc import Generator

from torch import Tensor

from trainer.data import Batch
from trainer.errors import BadSettings
from trainer.loop.flops import Flops, counted
from trainer.loop.loop import Loop
from trainer.loop.lr_finder import learning_rate_finder, put_back
from trainer.loop.settings import Settings


def count_operations(loop: Loop, settings: Settings) -> Flops:
    """Of a sample, before anything is loaded: what is loaded counts, and the data is where it was."""
    place = loop.data.state_dict()
    used: list[Batch] = []

    def run_micro_batch() -> Tensor:
        if not used:
            used.append(next(loop.data.epoch_batches()))
        return loop.answer(used[0]).loss

    flops, said = counted(loop.strategy, settings, lambda: used[0].samples, run_micro_batch)
    loop.training.say(said)
    loop.data.load_state_dict(place)
    return flops


def find_rate(loop: Loop) -> None:
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
