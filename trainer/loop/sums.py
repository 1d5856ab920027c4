"""Sums and counts that become means, exact however many ranks share the samples."""

import math
from collections.abc import Iterable, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from trainer.world import World

Count = Tensor | int | float
Sum = Tensor | tuple[Tensor, Count]  # over a batch's samples; with a count where the mean is not one over samples
Terms = dict[str, tuple[list[float], list[float]]]  # sums and counts, one of each a batch


class Sums:
    """What this rank has found so far. Nothing is read from the device before the end."""

    def __init__(self) -> None:
        self._sums: dict[str, list[Tensor]] = {}
        self._counts: dict[str, list[Count]] = {}

    def add(self, name: str, found: Sum, samples: int = 1) -> None:
        """`samples` are what it is over, where it does not say so itself."""
        total, count = found if isinstance(found, tuple) else (found, samples)
        self._sums.setdefault(name, []).append(total)
        self._counts.setdefault(name, []).append(count)

    def terms(self) -> Terms:
        return {name: (read(sums), read(self._counts[name])) for name, sums in self._sums.items()}


def read(values: Sequence[Count]) -> list[float]:
    """All of them in one go: a single wait for the device."""
    tensors = [torch.as_tensor(value).detach().double() for value in values]
    if not tensors:
        return []
    places = {tensor.device for tensor in tensors}
    if len(places) > 1:
        tensors = _on_the_device(tensors)
    numbers: list[float] = torch.stack([tensor.reshape(()) for tensor in tensors]).tolist()
    return numbers


def _on_the_device(tensors: Sequence[Tensor]) -> list[Tensor]:
    """Counts are mostly numbers of the host, sums are not."""
    device = next(tensor.device for tensor in tensors if tensor.device.type != "cpu")
    return [tensor.to(device) for tensor in tensors]


def means(of_ranks: Iterable[Terms]) -> dict[str, float]:
    """Rounded once, from the exact sum: how the batches were dealt out to ranks makes no difference."""
    sums: dict[str, list[float]] = {}
    counts: dict[str, list[float]] = {}
    for terms in of_ranks:
        for name, (some, how_many) in terms.items():
            sums.setdefault(name, []).extend(some)
            counts.setdefault(name, []).extend(how_many)
    return {name: divided(exact_sum(sums[name]), exact_sum(counts[name])) for name in sums}


def exact_sum(numbers: Iterable[float]) -> float:
    """As math.fsum, but infinities and NaN add up as usual instead of raising."""
    known = list(numbers)
    return math.fsum(known) if all(map(math.isfinite, known)) else sum(known)


def divided(total: float, count: float) -> float:
    """The mean; of nothing it is NaN."""
    return total / count if count else math.nan


def gathered(mine: Any, world: World) -> list[Any]:
    """What every rank has, by rank."""
    if world.control is None:
        return [mine]
    found: list[Any] = [None] * world.size
    dist.all_gather_object(found, mine, group=world.control)
    return found


def of_shares(mine: Any, world: World) -> list[Any]:
    """What was found of every share of the samples: ranks that work on one have all found the same."""
    found = gathered(mine, world)
    return [found[rank] for rank in world.of_shares]


def sum_over_ranks(world: World, number: int) -> int:
    """Of every share of the samples once. The same on all ranks, which meet here."""
    if world.control is None:
        return number
    total = torch.tensor(number if world.rank in world.of_shares else 0)
    dist.all_reduce(total, group=world.control)
    return int(total)
