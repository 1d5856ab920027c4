"""Make the training data of a Trainer, and refuse objects that are no data set."""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from torch.utils.data import DataLoader

from trainer.data import TrainData
from trainer.data.iterable import is_iterable
from trainer.errors import BadSettings
from trainer.loop.argument_checks import kind_of
from trainer.loop.settings import Settings
from trainer.loop.sums import sum_over_ranks
from trainer.world import World


def refuse_no_data_set(*, several: bool = False, **given: Any) -> None:
    """Raise BadSettings for arguments that are no data set, such as a DataLoader.

    A data set has `__getitem__`, `__iter__` or `read_shard`. `given` are the arguments by name, of which None passes;
    with `several`, a dict of data sets by name is allowed.
    """
    for name, data in given.items():
        if is_several(data):
            _refuse_by_name(name, data, several=several)
        if isinstance(data, DataLoader):
            kind = type(data).__name__
            raise BadSettings(
                f"{name}: expected a data set, got a {kind}, whose batches would be batched again\n"
                f"hint: {name}=loader.dataset, and its batch_size, num_workers and collate_fn as batch_size and "
                "workers in the settings and collate here; as `data` also torchdata's StatefulDataLoader"
            )
        if data is not None and not any(hasattr(data, one) for one in ("__getitem__", "__iter__", "read_shard")):
            raise BadSettings(f"{name}: expected a data set, got {kind_of(data)}")


def is_several(data: object) -> bool:
    """Return whether `data` is a dict of data sets by name."""
    return isinstance(data, Mapping) and all(isinstance(key, str) for key in data)


def _refuse_by_name(name: str, data: Mapping[str, Any], *, several: bool) -> None:
    """Raise BadSettings unless `data`, a dict of data sets by name, is allowed (`several`) and right.

    It is wrong if it is empty, or has a name that is no identifier or a value that is no data set. `name` is the
    argument that got it, for the error's text.
    """
    if not several:
        raise BadSettings(
            f"{name}: expected one data set, got a dict of {', '.join(data) or 'none'}\n"
            "hint: choose one of them, or put them together by torch.utils.data.ConcatDataset"
        )
    if not data:
        raise BadSettings(f"{name}: expected a data set, or several by name, got an empty dict")
    for key, one in data.items():
        if not key.isidentifier():
            raise BadSettings(f"{name}: expected names of letters, digits and _, got {key!r}")
        refuse_no_data_set(**{f"{name}[{key!r}]": one})


def train_data(settings: Settings, dataset: Any, collate: Callable[[list[Any]], Any] | None, world: World) -> TrainData:
    """Return this rank's training data, made of the data set or loader and the settings."""
    return TrainData(
        dataset,
        batch_size=settings.batch_size,
        rank=world.dp_rank,
        world_size=world.dp_size,
        accumulate=settings.accumulate,
        seed=settings.seed,
        shuffle=settings.shuffle,
        drop_last=settings.drop_last,
        workers=settings.workers,
        collate=collate,
        pin_memory=world.device.type == "cuda",
        sum_over_ranks=partial(sum_over_ranks, world),
    )


def epoch_samples(settings: Settings, dataset: Any, data: TrainData) -> int | None:
    """Return the number of samples of a whole epoch over all ranks, without those that `drop_last` leaves out.

    It is None for a stream, whose number is known only at the epoch's end.
    """
    if is_iterable(dataset) or data.steps_per_epoch is None:
        return None
    return min(data.steps_per_epoch * settings.batch_size, len(dataset))
