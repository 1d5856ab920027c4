"""Means over all samples of a data set, exact however many ranks share it."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from functools import partial
from itertools import islice
from typing import Any

import torch
from torch import nn
from torch.distributed.fsdp import FSDPModule
from torch.utils.data import Subset

from trainer.checkpoint.generators import restore_generators, state_of_generators
from trainer.data import Batch, EvalData
from trainer.data.iterable import is_iterable
from trainer.loop.average import Average
from trainer.loop.losses import LossFunction, answer_of, plain
from trainer.loop.metric_objects import MetricObjects, is_of_object
from trainer.loop.piped import Piped
from trainer.loop.placing import Placing
from trainer.loop.progress import Training
from trainer.loop.sums import Sum, Sums, means, of_shares, sum_over_ranks
from trainer.world import World

Metrics = Callable[[nn.Module, Any], Mapping[str, Sum | tuple[Any, ...]]]


class Shares:
    """The validation or test data of this rank.

    Batches are cut before they are dealt out: each is the same, and so is what is calculated from it, to the last bit,
    however many ranks there are.
    """

    def __init__(
        self,
        dataset: Any,
        samples: int,
        world: World,
        workers: int,
        collate: Callable[[list[Any]], Any] | None,
        most: int | None = None,
    ) -> None:
        """`most`: so many batches are enough."""
        open_data = partial(EvalData, workers=workers, collate=collate, pin_memory=world.device.type == "cuda")
        self._data: EvalData | None = None
        self._most = most
        self.are_of_a_stream = is_iterable(dataset)
        if self.are_of_a_stream:
            batch_size = samples * world.shares
            self._data = open_data(dataset, batch_size=batch_size, rank=world.share, world_size=world.shares)
        elif own := _dealt_out(len(dataset), samples, world):
            self._data = open_data(Subset(dataset, own), batch_size=samples)
        self._open_any = partial(EvalData, dataset, batch_size=samples, collate=collate)

    def batches(self) -> Iterator[Batch]:
        return iter(()) if self._data is None else islice(self._data.batches(), self._most)

    def filler(self) -> Batch:
        """Some batch, for a rank that has none left and has to keep step."""
        return replace(next(self._open_any().batches()), samples=0)

    def close(self) -> None:
        if self._data is not None:
            self._data.close()


def _dealt_out(length: int, samples: int, world: World) -> list[int]:
    """This rank's indices: every `world.shares`-th batch."""
    firsts = range(world.share * samples, length, world.shares * samples)
    return [index for first in firsts for index in range(first, min(first + samples, length))]


class Evaluation:
    """A pass over validation or test data that leaves no trace in the training."""

    def __init__(
        self,
        training: Training,
        shares: Shares,
        loss: LossFunction | None,
        metrics: Metrics | None,
        average: Average | None = None,
        prefix: str = "val_",
    ) -> None:
        strategy = training.strategy
        self._strategy, self._world, self._place = strategy, training.world, Placing(training.world.device)
        # Not through DDP: ranks may have unequally many batches. But through DataParallel, which is one process.
        self._model = strategy.model if strategy.settings.strategy == "dp" else strategy.module
        self._piped = Piped(strategy.pipeline) if strategy.pipeline is not None else None
        self._roots = [self._model, *(strategy.pipeline.stages.values() if strategy.pipeline is not None else ())]
        self._shares, self._loss, self._metrics, self._prefix = shares, loss, metrics, prefix
        self._weights = average.in_place if average is not None else nullcontext

    def run(self, after_batch: Callable[[], None]) -> dict[str, float]:
        """`val_loss` or `test_loss`, and what else the user's functions say; the same on all ranks."""
        with self._weights(), self._without_trace():
            sums, objects = self._found(self._in_step(self._shares.batches()), after_batch)
            found = {**means(of_shares(sums.terms(), self._world)), **objects.values(self._world)}
        return {self._prefix + name: value for name, value in found.items()}

    def names(self) -> list[str] | None:
        """What values there will be, found out with a single batch; None of a stream, which would lose it."""
        if self._shares.are_of_a_stream:
            return None
        with self._without_trace():
            sums, objects = self._found(iter([replace(self._shares.filler(), samples=1)]), lambda: None)
        return [self._prefix + name for name in (*sums.terms(), *objects.names)]

    @contextmanager
    def _without_trace(self) -> Iterator[None]:
        generators = state_of_generators(self._world.device)
        modes = [(part, part.training) for root in self._roots for part in root.modules()]
        self._strategy.share_buffers()
        self._model.eval()
        try:
            with torch.no_grad():
                yield
        finally:
            for part, mode in modes:
                part.training = mode
                if isinstance(part, FSDPModule):
                    part.reshard()  # it waits for a backward pass to let go of what it has gathered
            restore_generators(generators, self._world.device)

    def close(self) -> None:
        """End its workers."""
        self._shares.close()

    def _found(self, batches: Iterator[Batch], after_batch: Callable[[], None]) -> tuple[Sums, MetricObjects]:
        sums, objects = Sums(), MetricObjects()
        for batch in batches:
            values = self._values(self._place(batch.data), batch.samples)
            if batch.samples:
                for name, value in values.items():
                    if is_of_object(value):
                        objects.update(name, *value)
                    else:
                        sums.add(name, value, batch.samples)
            after_batch()
        return sums, objects

    def _values(self, data: Any, samples: int) -> Mapping[str, Sum | tuple[Any, ...]]:
        """Of one batch, by name."""
        if self._piped is not None:
            functions = (partial(_losses, self._loss, samples) if self._loss is not None else None, self._metrics)
            return {name: value for one in functions if one for name, value in self._piped.ask(one, data).items()}
        with self._strategy.forward_context(sync=True):
            losses = _losses(self._loss, samples, self._model, data)
            return {**losses, **(plain(self._metrics(self._model, data)) if self._metrics is not None else {})}

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


def _losses(loss: LossFunction | None, samples: int, model: nn.Module, data: Any) -> Mapping[str, Sum]:
    return {} if loss is None else answer_of(loss(model, data)).sums(samples)
