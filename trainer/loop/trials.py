"""Run a training as a trial: on a few batches again and again, or for a few steps."""

import dataclasses
import shutil
import weakref
from itertools import islice
from pathlib import Path
from typing import Any

from torch.utils.data import DataLoader, Dataset, Subset

from trainer.data.iterable import has_shards, is_iterable, shards_itself
from trainer.data.loaders import is_loader
from trainer.data.seeds import IsolatedDraws, seed_draws
from trainer.errors import BadSettings
from trainer.loop.settings import Settings
from trainer.wire import Launched
from trainer.world import World, barrier

_SUFFIX = ".fast-dev-run"


def trial_settings(settings: Settings) -> Settings:
    """Return the settings of a trial, or as they are if none is asked for.

    With `overfit_batches` nothing is shuffled. With `fast_dev_run` there are at most so many steps, each is logged, and
    the checkpoints go to a folder of their own.
    """
    if settings.overfit_batches is not None:
        settings = dataclasses.replace(settings, shuffle=False)
    if settings.fast_dev_run is not None:
        folder = Path(settings.checkpoint_dir or Launched.from_environment().checkpoint_dir or "checkpoints").absolute()
        settings = dataclasses.replace(
            settings,
            max_steps=min(settings.fast_dev_run, settings.max_steps or settings.fast_dev_run),
            checkpoint_dir=folder.with_name(folder.name + _SUFFIX),  # on the same disk as the real ones
            log_every=1,
            resume="auto",
            lr_find=False,
            tensorboard=False,
        )
    return settings


def first_batches(settings: Settings, data: Dataset[Any] | DataLoader[Any]) -> Dataset[Any] | DataLoader[Any]:
    """Return only the samples of the first `overfit_batches` batches, or all data if that setting is None.

    A batch is here the `batch_size` samples of a step, over all ranks. Raises BadSettings for a loader, or a stream of
    which ranks see different parts.
    """
    if settings.overfit_batches is None:
        return data
    if is_loader(data):
        raise BadSettings("overfit_batches: expected a data set, got a loader, which takes batches as it likes")
    count = settings.overfit_batches * settings.batch_size
    if not is_iterable(data):
        return Subset(data, range(min(count, len(data))))  # type: ignore[arg-type] # it has a length
    if shards_itself(data) or has_shards(data):
        raise BadSettings("overfit_batches: expected data of which all ranks see the same, got a stream in shards")
    with IsolatedDraws():  # all ranks, and each start, draw alike
        seed_draws(settings.seed)
        few: Any = list(islice(iter(data), count))
    return few  # type: ignore[no-any-return] # a list is a data set


def begin_dev_run(trainer: object, settings: Settings, world: World) -> None:
    """Delete the checkpoint folder that an earlier dev run left.

    This run's folder is deleted when the object `trainer` is garbage-collected or the process ends. Without the setting
    `fast_dev_run` nothing is done. All ranks have to call this.
    """
    if settings.fast_dev_run is None or settings.checkpoint_dir is None:
        return
    if world.local_rank == 0:
        shutil.rmtree(settings.checkpoint_dir, ignore_errors=True)  # of one that was killed
        weakref.finalize(trainer, shutil.rmtree, settings.checkpoint_dir, ignore_errors=True)
    barrier(world)
