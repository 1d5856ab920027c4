"""Means over all samples of a data set, exact however many ranks share it."""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule
from torch.utils.data import Subset

from trainer.checkpoint.generators import restore_generators, state_of_generators
from trainer.data import Batch, EvalData
from trainer.data.iterable import is_iterable
from trainer.errors import TrainerError
from trainer.loop.placing import placed
from trainer.loop.progress import Training
from trainer.world import World

Sum = Tensor | tuple[Tensor, Tensor]  # over a batch's samples; with a count where the mean is not one over samples
LossFunction = Callable[[nn.Module, Any], Tensor | tuple[Tensor, Mapping[str, Tensor]]]
Metrics = Callable[[nn.Module, Any], Mapping[str, Sum]]
Terms = dict[str, tuple[list[float], list[float]]]  # sums and counts, one of each a batch


def loss_and_more(answer: Any) -> tuple[Tensor, Mapping[str, Tensor]]:
    """What a loss function has given: the loss, and other means by name."""
    if isinstance(answer, Tensor):
        return answer, {}
    if isinstance(answer, tuple) and len(answer) == 2 and isinstance(answer[0], Tensor):
        loss, said = answer
        if isinstance(said, Mapping):
            return loss, said
    got = ", ".join(type(one).__name__ for one in answer) if isinstance(answer, tuple) else type(answer).__name__
    raise TrainerError(
        f"loss: expected a tensor, or a tensor and a dict of more values, got {got}\n"
        "hint: `return loss`, or `return loss, {'name': value}`"
    )


class Sums:
    """What this rank has found so far. Nothing is read from the device before the end."""

    def __init__(self) -> None:
        self._sums: dict[str, list[Tensor]] = {}
        self._counts: dict[str, list[Tensor | float]] = {}

    def add_mean(self, name: str, mean: Tensor, samples: int) -> None:
        self.add_sum(name, (mean.detach().double() * samples, torch.tensor(samples)))

    def add_sum(self, name: str, found: Sum, samples: int = 1) -> None:
        total, count = found if isinstance(found, tuple) else (found, samples)
        self._sums.setdefault(name, []).append(total)
        self._counts.setdefault(name, []).append(count)

    def terms(self) -> Terms:
        return {name: (_read(sums), _read(self._counts[name])) for name, sums in self._sums.items()}


def _read(values: Sequence[Tensor | float]) -> list[float]:
    """All of them in one go: a single wait for the device."""
    tensors = [torch.as_tensor(value).detach().double() for value in values]
    places = {tensor.device for tensor in tensors}
    if len(places) > 1:
        tensors = [tensor.cpu() for tensor in tensors]
    numbers: list[float] = torch.stack([tensor.reshape(()) for tensor in tensors]).tolist()
    return numbers


def means(of_ranks: Iterable[Terms]) -> dict[str, float]:
    """Rounded once, from the exact sum: how the batches were dealt out to ranks makes no difference."""
    sums: dict[str, list[float]] = {}
    counts: dict[str, list[float]] = {}
    for terms in of_ranks:
        for name, (some, how_many) in terms.items():
            sums.setdefault(name, []).extend(some)
            counts.setdefault(name, []).extend(how_many)
    return {name: _divided(exact_sum(sums[name]), exact_sum(counts[name])) for name in sums}


def exact_sum(numbers: Iterable[float]) -> float:
    """As math.fsum, but infinities and NaN add up as usual instead of raising."""
    known = list(numbers)
    return math.fsum(known) if all(map(math.isfinite, known)) else sum(known)


def _divided(total: float, count: float) -> float:
    return total / count if count else math.nan


def gathered(mine: Any, world: World) -> list[Any]:
    """What every rank has, by rank."""
    if world.control is None:
        return [mine]
    found: list[Any] = [None] * world.size
    dist.all_gather_object(found, mine, group=world.control)
    return found


class Shares:
    """The validation data of this rank.

    Batches are cut before they are dealt out: each is the same, and so is what is calculated from it, to the last bit,
    however many ranks there are.
    """

    def __init__(
        self, dataset: Any, samples: int, world: World, workers: int, collate: Callable[[list[Any]], Any] | None
    ) -> None:
        open_data = partial(EvalData, workers=workers, collate=collate, pin_memory=world.device.type == "cuda")
        self._data: EvalData | None = None
        if is_iterable(dataset):
            self._data = open_data(dataset, batch_size=samples * world.size, rank=world.rank, world_size=world.size)
        elif own := _dealt_out(len(dataset), samples, world):
            self._data = open_data(Subset(dataset, own), batch_size=samples)
        self._open_any = partial(EvalData, dataset, batch_size=samples, collate=collate)

    def batches(self) -> Iterator[Batch]:
        return iter(()) if self._data is None else self._data.batches()

    def filler(self) -> Batch:
        """Some batch, for a rank that has none left and has to keep step."""
        return replace(next(self._open_any().batches()), samples=0)

    def close(self) -> None:
        if self._data is not None:
            self._data.close()


def _dealt_out(length: int, samples: int, world: World) -> list[int]:
    """This rank's indices: every `world.size`-th batch."""
    firsts = range(world.rank * samples, length, world.size * samples)
    return [index for first in firsts for index in range(first, min(first + samples, length))]


class Evaluation:
    """A pass over the validation data that leaves no trace in the training."""

    def __init__(self, training: Training, shares: Shares, loss: LossFunction, metrics: Metrics | None) -> None:
        strategy = training.strategy
        self._strategy, self._world = strategy, training.world
        # Not through DDP: ranks may have unequally many batches. But through DataParallel, which is one process.
        self._model = strategy.model if strategy.settings.strategy == "dp" else strategy.module
        self._shares, self._loss, self._metrics = shares, loss, metrics

    def run(self, after_batch: Callable[[], None]) -> dict[str, float]:
        """`val_loss`, and what else the user's functions say; the same on all ranks."""
        generators = state_of_generators(self._world.device)
        modes = [(part, part.training) for part in self._model.modules()]
        self._strategy.share_buffers()
        self._model.eval()
        try:
            with torch.no_grad():
                sums = self._sums(after_batch)
        finally:
            for part, mode in modes:
                part.training = mode
                if isinstance(part, FSDPModule):
                    part.reshard()  # it waits for a backward pass to let go of what it has gathered
            restore_generators(generators, self._world.device)
        return {f"val_{name}": value for name, value in means(gathered(sums.terms(), self._world)).items()}

    def close(self) -> None:
        """End its workers."""
        self._shares.close()

    def _sums(self, after_batch: Callable[[], None]) -> Sums:
        sums = Sums()
        for batch in self._in_step(self._shares.batches()):
            data = placed(batch.data, self._world.device)
            with self._strategy.forward_context(sync=True):
                answer = self._loss(self._model, data)
                found = self._metrics(self._model, data) if self._metrics is not None else {}
            loss, said = loss_and_more(answer)
            if batch.samples:
                for name, mean in {"loss": loss, **said}.items():
                    sums.add_mean(name, mean, batch.samples)
                for name, found_sum in found.items():
                    sums.add_sum(name, found_sum, batch.samples)
            after_batch()
        return sums

    def _in_step(self, batches: Iterator[Batch]) -> Iterator[Batch]:
        """With fillers at the end where ranks meet in every forward pass, until all have had theirs."""
        if not self._strategy.is_sharded:
            yield from batches
            return
        filler: Batch | None = None
        while True:
            batch = next(batches, None)
            if not sum_over_ranks(self._world, int(batch is not None)):
                return
            if batch is None:
                batch = filler = filler or self._shares.filler()
            yield batch


def sum_over_ranks(world: World, number: int) -> int:
    """The same on all ranks, which meet here."""
    if world.control is None:
        return number
    total = torch.tensor(number)
    dist.all_reduce(total, group=world.control)
    return int(total)
