"""The loss of one optimizer step, over its micro-batches and ranks."""

from collections.abc import Mapping

import torch
import torch.distributed as dist
from torch import Tensor

from trainer.data import Batch
from trainer.loop.evaluation import exact_sum
from trainer.world import World


class StepLosses:
    """Gathered only in steps that are logged, and read from the device only then."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._names: tuple[str, ...] = ()
        self._parts: list[list[Tensor]] = []
        self._samples: list[int] = []

    def add(self, loss: Tensor, said: Mapping[str, Tensor], batch: Batch) -> None:
        self._names = ("loss", *said)
        self._parts.append([loss.detach(), *said.values()])
        self._samples.append(batch.samples)

    def take(self, step_samples: int) -> dict[str, float]:
        """The means over all samples of the step, the same on all ranks. Ranks meet here."""
        rows = torch.stack([_row(part) for part in self._parts]).tolist()
        # A batch that only fills up has no part in it, whatever its loss is.
        rows = [[value * samples for value in row] for row, samples in zip(rows, self._samples, strict=True) if samples]
        mine = [exact_sum(column) for column in zip(*rows, strict=True)] or [0.0] * len(self._names)
        self._parts.clear()
        self._samples.clear()
        columns = zip(*self._of_all(mine), strict=True)
        return {name: exact_sum(column) / step_samples for name, column in zip(self._names, columns, strict=True)}

    def _of_all(self, mine: list[float]) -> list[list[float]]:
        if self._world.control is None:
            return [mine]
        sums = torch.tensor(mine, dtype=torch.float64)
        found = [torch.empty_like(sums) for _ in range(self._world.size)]
        dist.all_gather(found, sums, group=self._world.control)
        return [each.tolist() for each in found]


def _row(values: list[Tensor]) -> Tensor:
    return torch.stack([torch.as_tensor(value).detach().double().reshape(()).to(values[0].device) for value in values])
