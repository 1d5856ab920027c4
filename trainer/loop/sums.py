"""Turn sums and counts into means, exact however many ranks share the samples.

A `Count` is one number, also as a tensor. A `Sum` is one number, or a pair of sum and count.
"""

import math
from collections.abc import Iterable, Sequence
from numbers import Integral
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from trainer.world import World

Count = Tensor | int | float
Sum = Count | tuple[Count, Count]  # a mean over a batch, a number of its samples, or a sum and a count
Terms = dict[str, tuple[list[float], list[float]]]  # sums and counts, one of each a batch


class Sums:
    """Collects this rank's sum and count of each named value by batch; only `terms` reads them from the device."""

    def __init__(self) -> None:
        self._sums: dict[str, list[Count]] = {}
        self._counts: dict[str, list[Count]] = {}

    def add(self, name: str, found: tuple[Count, Count]) -> None:
        """Add a batch's `found` to the value called `name`: a pair of a sum and the count that it is divided by.

        Either may be a number, or a tensor that stays on its device.
        """
        total, count = found
        self._sums.setdefault(name, []).append(total)
        self._counts.setdefault(name, []).append(count)

    def terms(self) -> Terms:
        """Return by name a pair: the list of the sums of all batches, and the list of their counts."""
        return {name: (read(sums), read(self._counts[name])) for name, sums in self._sums.items()}


def sum_of(value: Sum, samples: int, *, floats_are_sums: bool = False) -> tuple[Count, Count]:
    """Return the sum and the count for a metric's value over a batch of `samples` samples.

    An integer counts samples, such as correct ones. Any other number is a mean over them, or with `floats_are_sums` a
    sum, as in trainings that began with version 0.1.
    """
    if isinstance(value, tuple):
        return value
    if floats_are_sums or not is_float(value):
        return value, samples
    return torch.as_tensor(value).detach().double() * samples, samples


def is_float(value: Sum) -> bool:
    """Return whether the value is a single number of a floating-point type."""
    return value.is_floating_point() if isinstance(value, Tensor) else not isinstance(value, (tuple, Integral))


def read(values: Sequence[Count]) -> list[float]:
    """Return all values, numbers or tensors of one number, as floats; the device is waited for only once."""
    tensors = [torch.as_tensor(value).detach().double() for value in values]
    if not tensors:
        return []
    places = {tensor.device for tensor in tensors}
    if len(places) > 1:
        tensors = _on_the_device(tensors)
    numbers: list[float] = torch.stack([tensor.reshape(()) for tensor in tensors]).tolist()
    return numbers


def _on_the_device(tensors: Sequence[Tensor]) -> list[Tensor]:
    """Return the tensors, all moved to the device of the first one that is not on the CPU; one at least must be."""
    device = next(tensor.device for tensor in tensors if tensor.device.type != "cpu")
    return [tensor.to(device) for tensor in tensors]


def means(of_ranks: Iterable[Terms]) -> dict[str, float]:
    """Return the mean of each value by name from all ranks' sums and counts, added exactly and rounded once."""
    sums: dict[str, list[float]] = {}
    counts: dict[str, list[float]] = {}
    for terms in of_ranks:
        for name, (some, how_many) in terms.items():
            sums.setdefault(name, []).extend(some)
            counts.setdefault(name, []).extend(how_many)
    return {name: divided(exact_sum(sums[name]), exact_sum(counts[name])) for name in sums}


def exact_sum(numbers: Iterable[float]) -> float:
    """Return math.fsum of the numbers, except that infinities and NaN add up instead of raising an error."""
    known = list(numbers)
    return math.fsum(known) if all(map(math.isfinite, known)) else sum(known)


def divided(total: float, count: float) -> float:
    """Return the mean, or NaN if the count is 0."""
    return total / count if count else math.nan


def gathered(mine: Any, world: World) -> list[Any]:
    """Return the value `mine` of all ranks, by rank; all ranks call it."""
    if world.control is None:
        return [mine]
    found: list[Any] = [None] * world.size
    dist.all_gather_object(found, mine, group=world.control)
    return found


def one_per_replica(mine: Any, world: World) -> list[Any]:
    """Return the value `mine` of the first rank of each copy of the model, in the order of the copies.

    All ranks call it. The ranks of one copy have the same value.
    """
    found = gathered(mine, world)
    return [found[rank] for rank in world.replica_leaders]


def sum_over_ranks(world: World, number: int) -> int:
    """Return the sum of `number` over all ranks, or over all copies of the model if several ranks share one.

    Every rank calls it, those of one copy with the same `number`, and gets the same sum.
    """
    if world.control is None:
        return number
    total = torch.tensor(number if world.rank in world.replica_leaders else 0)
    dist.all_reduce(total, group=world.control)
    return int(total)
