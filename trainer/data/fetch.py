"""Fetch indices of a map-style data set as a collated batch."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch.utils.data import Subset, TensorDataset, default_collate

from trainer.data.order import Micro
from trainer.data.seeds import seed_draws

Collate = Callable[[list[Any]], Any]


class Job(NamedTuple):
    """The samples to fetch for one micro-batch, by their `indices` in the data set.

    `samples` is how many they are, or 0 if the only index is for a filler, a batch that does not count. `micro` is the
    position of the micro-batch in the epoch.
    """

    indices: list[int]  # of the samples in the data set
    samples: int  # 0: the one index is a filler
    epoch: int
    micro: Micro


class Fetch:
    """A function that returns the batch of a Job, the samples to fetch for one micro-batch.

    Random numbers that the data set draws depend on the seed, the rank and the micro-batch alone. `draws` is False for
    plain tensors, whose rows are taken without random numbers, so that no generator is seeded.
    """

    def __init__(self, dataset: Any, collate: Collate | None, *, seed: int, rank: int) -> None:
        rows = _rows(dataset) if collate is None else None
        self._read = rows or _reader(dataset, collate or default_collate)
        self.draws = rows is None  # rows of tensors are taken without drawing anything: no need to seed for it
        self._seed, self._rank = seed, rank

    def __call__(self, job: Job) -> Any:
        if self.draws:
            seed_draws(self._seed, job.epoch, job.micro.start, job.micro.number, self._rank)
        return self._read(job.indices)


def _reader(dataset: Any, collate: Collate) -> Callable[[list[int]], Any]:
    """Return a function that reads the samples at some indices as one batch."""
    many = getattr(dataset, "__getitems__", None)
    if callable(many):
        return lambda indices: collate(many(indices))
    return lambda indices: collate([dataset[index] for index in indices])


class _Rows:
    """Reads all samples of a batch of a TensorDataset at once, as rows of its tensors; called with their indices.

    The result equals that of `default_collate`. If the data set is a subset, perhaps of another subset, `places` has
    the indices of each subset, outermost first, and the indices of the batch are translated by each of these in turn.
    """

    def __init__(self, tensors: Sequence[torch.Tensor], places: Sequence[Sequence[int]]) -> None:
        self._tensors, self._places = tensors, places

    def __call__(self, indices: list[int]) -> list[torch.Tensor]:
        for places in self._places:
            indices = [int(places[index]) for index in indices]
        rows = torch.tensor(indices)
        return [tensor[rows] for tensor in self._tensors]


def _rows(dataset: Any) -> _Rows | None:
    """Return a reader of rows if the data set is plain tensors or a subset of them; None for any other."""
    places = []
    while type(dataset) is Subset:
        places.append(dataset.indices)
        dataset = dataset.dataset
    return _Rows(dataset.tensors, places) if type(dataset) is TensorDataset else None
