"""Compute means over all samples of validation or test data, exact however many ranks share the samples."""

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from functools import partial
from itertools import islice
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule
from torch.utils._pytree import tree_map_only
from torch.utils.data import Subset

from trainer.checkpoint.generators import restore_generators, state_of_generators
from trainer.data import Batch, EvalData
from trainer.data.iterable import is_iterable
from trainer.loop.average import Average
from trainer.loop.losses import LossFunction, answer_of, by_name, plain, refuse_no_number
from trainer.loop.metric_objects import MetricObjects, is_of_object
from trainer.loop.pipeline_loss import Piped
from trainer.loop.placing import Placing
from trainer.loop.progress import Training
from trainer.loop.shared_forward import sharing_forward
from trainer.loop.sums import Sum, Sums, is_float, means, one_per_replica, sum_of, sum_over_ranks
from trainer.world import World

log = logging.getLogger("trainer")
Metrics = Callable[[nn.Module, Any], Mapping[str, Sum | tuple[Any, ...]]]


class RankBatches:
    """Gives the validation or test batches of this rank.

    Batches are formed before they are divided over ranks, so that each batch, and each value computed from it, is the
    same to the last bit on any number of ranks. `are_of_a_stream` is True for data without a length.
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
        """Divide `dataset` into batches of so many samples; `most` limits those of this rank (None: no limit)."""
        open_data = partial(EvalData, workers=workers, collate=collate, pin_memory=world.device.type == "cuda")
        self._data: EvalData | None = None
        self._most = most
        self.are_of_a_stream = is_iterable(dataset)
        if self.are_of_a_stream:
            batch_size = samples * world.dp_size
            self._data = open_data(dataset, batch_size=batch_size, rank=world.dp_rank, world_size=world.dp_size)
        elif own := _own_indices(len(dataset), samples, world):
            self._data = open_data(Subset(dataset, own), batch_size=samples)
        self._open_any = partial(EvalData, dataset, batch_size=samples, collate=collate)

    def batches(self) -> Iterator[Batch]:
        """Yield this rank's batches."""
        return iter(()) if self._data is None else islice(self._data.batches(), self._most)

    def filler(self) -> Batch:
        """Return the data's first batch with its `samples` set to 0, so that it does not count.

        A rank that has no batch left runs the filler if all ranks have to do a forward pass together.
        """
        return replace(next(self._open_any().batches()), samples=0)

    def close(self) -> None:
        """End the worker processes that load the data."""
        if self._data is not None:
            self._data.close()


def _own_indices(length: int, samples: int, world: World) -> list[int]:
    """Return the indices of this rank's samples: every `world.dp_size`-th batch, from batch `world.dp_rank` on.

    `length` is the number of all samples, and `samples` that of one batch.
    """
    firsts = range(world.dp_rank * samples, length, world.dp_size * samples)
    return [index for first in firsts for index in range(first, min(first + samples, length))]


class Evaluation:
    """Computes loss and metrics on validation or test data, and leaves the training's state unchanged."""

    def __init__(
        self,
        training: Training,
        shares: RankBatches,
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
        self._progress, self._warned_of = training.progress, set[str]()
        self._weights = average.in_place if average is not None else nullcontext

    def run(self, after_batch: Callable[[], None]) -> dict[str, float]:
        """Return the means of loss and metrics over all samples, by name. All ranks call it and get the same result.

        Names begin with the prefix of this evaluation, such as `val_loss` and `val_accuracy`. `after_batch` is called
        after each batch.
        """
        with self._weights(), self._without_trace():
            sums, objects = self._sums_over(self._with_fillers(self._shares.batches()), after_batch)
            found = {**means(one_per_replica(sums.terms(), self._world)), **objects.values(self._world)}
        return {self._prefix + name: value for name, value in found.items()}

    def predict(self, answer: Callable[[nn.Module, Any], Any], after_batch: Callable[[], None]) -> list[Any]:
        """Return `answer(model, batch)` for each batch of the data, in its order.

        All ranks call it; each computes a share of the batches, and each gets the results for all. Tensors in the
        results are on the CPU. `after_batch` is called after each forward pass of this rank.
        """
        mine: list[Any] = []
        with self._weights(), self._without_trace():
            for batch in self._with_fillers(self._shares.batches()):
                with self._strategy.forward_context(sync=True):
                    found = answer(self._model, self._place(batch.data))
                if batch.samples:
                    mine.append(tree_map_only(Tensor, lambda one: plain(one).detach().cpu(), found))
                after_batch()
            of_each = one_per_replica(mine, self._world)
        return [some[number] for number in range(len(of_each[0])) for some in of_each if number < len(some)]

    def names(self) -> list[str] | None:
        """Evaluate one batch and return the names of the values that `run` would return; all ranks call it.

        Returns None for a stream, as a batch that is read from it would be lost.
        """
        if self._shares.are_of_a_stream:
            return None
        with self._without_trace():
            sums, objects = self._sums_over(iter([replace(self._shares.filler(), samples=1)]), lambda: None)
        return [self._prefix + name for name in (*sums.terms(), *objects.names)]

    @contextmanager
    def _without_trace(self) -> Iterator[None]:
        """Evaluate without gradients in this context, then restore random generators and training modes."""
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
        """End the worker processes that load the data."""
        self._shares.close()

    def _sums_over(self, batches: Iterator[Batch], after_batch: Callable[[], None]) -> tuple[Sums, MetricObjects]:
        """Evaluate these batches; return this rank's sums, and the metric objects that the batches have updated.

        `after_batch` is called after each batch. Raises TrainerError for a value that is neither one number, nor a pair
        of sum and count, nor a metric object with its arguments.
        """
        sums, objects = Sums(), MetricObjects()
        for batch in batches:
            values = self._values(self._place(batch.data), batch.samples)
            if batch.samples:
                for name, value in values.items():
                    if isinstance(value, tuple) and is_of_object(value):
                        objects.update(name, *value)
                    else:
                        sums.add(name, self._sum_of(name, value, batch.samples))
            after_batch()
        return sums, objects

    def _values(self, data: Any, samples: int) -> Mapping[str, Sum | tuple[Any, ...]]:
        """Call the loss and metrics functions with the batch `data` of `samples` samples; return their values by name.

        A value is a number, a pair of sum and count, or a metric object with its arguments.
        """
        functions: list[Callable[[nn.Module, Any], Any]] = []
        if self._loss is not None:
            functions.append(partial(_losses, self._loss, samples))
        if self._metrics is not None:
            functions.append(self._metrics)
        if self._piped is not None:
            return self._piped.ask(functions, data)
        found: dict[str, Any] = {}
        with self._strategy.forward_context(sync=True), sharing_forward(self._model) as shared:
            for function in functions:
                shared.next_function()
                found |= by_name(plain(function(self._model, data)))
        return found

    def _sum_of(self, name: str, value: Sum, samples: int) -> tuple[Any, Any]:
        """Return (sum, count) of a value that a metrics function returned for a batch of `samples` samples.

        The value is the mean over the batch, a number of its samples, or already such a pair. Raises TrainerError, with
        the value's `name`, if it is no number.
        """
        refuse_no_number(f"metrics: {name}", value)
        sums = self._progress.float_metrics == "sum"
        if not isinstance(value, tuple) and is_float(value) and name not in self._warned_of and self._world.is_first:
            self._warned_of.add(name)
            what = "a sum, as it was when this training began" if sums else "the mean over the batch, no longer a sum"
            log.warning("metrics: %s: this number is read as %s\nhint: (sum, count) says which it is", name, what)
        return sum_of(value, samples, floats_are_sums=sums)

    def _with_fillers(self, batches: Iterator[Batch]) -> Iterator[Batch]:
        """Yield this rank's batches, and if weights are sharded, then fillers until no rank has a batch left.

        A filler is a batch that does not count. Ranks with sharded weights communicate in each forward pass, so all
        have to run equally many.
        """
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


class SeveralEvaluations:
    """A pass over each of several named sets of validation or test data, one after the other."""

    def __init__(self, each: Sequence[Evaluation]) -> None:
        self._each = each

    def run(self, after_batch: Callable[[], None]) -> dict[str, float]:
        """Run each evaluation and return all their values in one dictionary, the same on all ranks.

        Names begin with the prefix of their data set. `after_batch` is called after each batch.
        """
        return {name: value for one in self._each for name, value in one.run(after_batch).items()}

    def names(self) -> list[str] | None:
        """Evaluate one batch of each set and return the names of the values that `run` would return; all ranks call it.

        Returns None if one of the sets is a stream, as a batch that is read from it would be lost.
        """
        found = [one.names() for one in self._each]
        return None if None in found else [name for names in found for name in names or ()]

    def close(self) -> None:
        """End the worker processes of all data sets."""
        for one in self._each:
            one.close()


def answer_alone(model: nn.Module, batch: Any) -> Any:
    """Return the model's output for a batch.

    A mapping is passed as keyword arguments. From a tuple or list only the first item is passed, the input, as labels
    follow it. Anything else is passed as it is.
    """
    if isinstance(batch, Mapping):
        return model(**batch)
    return model(batch[0] if isinstance(batch, (tuple, list)) else batch)


def _losses(loss: LossFunction | None, samples: int, model: nn.Module, data: Any) -> Mapping[str, Sum]:
    """Return by name the sum and count of each loss value of the batch `data` of `samples` samples.

    Returns an empty dict without a loss function.
    """
    return {} if loss is None else answer_of(loss(model, data)).sums(samples)
