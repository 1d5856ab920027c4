"""Decide which sample goes where: the order of an epoch, its steps, micro-batches and ranks; pure functions.

Everything follows from the position in the epoch, counted in samples over all ranks.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from trainer.errors import BadSettings

if TYPE_CHECKING:
    from numpy.typing import NDArray

_WORD = 2**32 - 1


@dataclass(frozen=True, slots=True)
class Sharing:
    """The rule by which the samples of an optimizer step are divided over micro-batches and ranks.

    `batch_size` counts the samples of a step over all ranks and its `accumulate` micro-batches. `rank` is the number of
    this rank.
    """

    batch_size: int  # samples of one optimizer step, over all ranks and micro-batches
    accumulate: int = 1
    world_size: int = 1
    rank: int = 0

    def __post_init__(self) -> None:
        for name in ("batch_size", "accumulate", "world_size"):
            if getattr(self, name) < 1:
                raise BadSettings(f"data: {name}: expected 1 or more, got {getattr(self, name)}")
        if not 0 <= self.rank < self.world_size:
            raise BadSettings(f"data: rank: expected one of 0..{self.world_size - 1}, got {self.rank}")

    def micro_batches(self, start: int, stop: int) -> list[tuple[int, int]]:
        """Return the positions [lo, hi) of each micro-batch, of all ranks together, of the step at [start, stop).

        Positions count in the epoch's order. The micro-batches cover the step and are as even as possible. A last,
        shorter step is cut at the same places as a full one, as far as it reaches, and so has fewer of them; with many
        tiny ones instead, some ranks would compute without a sample.
        """
        cuts = [min(start + self.batch_size * m // self.accumulate, stop) for m in range(self.accumulate + 1)]
        return [(lo, hi) for lo, hi in pairwise(cuts) if lo < hi]

    def share(self, lo: int, hi: int) -> range:
        """Return the positions in [lo, hi) of this rank: position p belongs to rank p % world size."""
        return range(lo + (self.rank - lo) % self.world_size, hi, self.world_size)


class Micro(NamedTuple):
    """A micro-batch over all ranks: the samples at the positions `lo` up to `hi` (exclusive) in the order of the epoch.

    It is part of the step with the positions `start` up to `stop`; `number` is its index among the step's
    micro-batches.
    """

    start: int
    stop: int
    number: int  # of the micro-batch in its step
    lo: int
    hi: int


def epoch_order(length: int, seed: int, epoch: int, *, shuffle: bool) -> "NDArray[Any]":
    """Return the data set's indices in the order of this epoch, the same on every rank and in every release of NumPy.

    Without `shuffle` they ascend. NumPy promises never to change the draws of RandomState (NEP 19), unlike those of
    Generator; a run may be resumed after an update.
    """
    if not shuffle:
        return np.arange(length)
    words = [seed & _WORD, seed >> 32 & _WORD, epoch & _WORD]
    return np.random.RandomState(words).permutation(length)


def steps_in(length: int, batch_size: int, *, drop_last: bool) -> int:
    """Return how many optimizer steps an epoch of `length` samples has.

    `batch_size` is the samples of a step over all ranks. With `drop_last`, a last step with fewer samples is left out.
    """
    return length // batch_size if drop_last else -(-length // batch_size)


def micro_batches(done: int, length: int, sharing: Sharing, *, drop_last: bool) -> Iterator[Micro]:
    """Yield the micro-batches that are left of an epoch of `length` samples, of which `done` are done.

    Each is over all ranks. Together they have every position from `done` on in the epoch's order, except that with
    `drop_last` a last step is left out if it has fewer samples than `sharing.batch_size`.
    """
    for start in range(done, length, sharing.batch_size):
        stop = min(start + sharing.batch_size, length)
        if drop_last and stop - start < sharing.batch_size:
            return
        for number, (lo, hi) in enumerate(sharing.micro_batches(start, stop)):
            yield Micro(start, stop, number, lo, hi)


@dataclass(frozen=True, slots=True)
class Batch:
    """A micro-batch of this rank.

    If the rank has no sample for it, its data is a filler: any sample, so that the rank takes part in the collectives
    of the others, with a loss that must not count.
    """

    data: Any  # collated
    samples: int  # how many samples of this rank are in it; 0: a filler, whose loss must not count
    scale: float  # factor of the mean loss before backward: samples * ranks that share the step / step_samples
    ends_step: bool  # the last micro-batch of an optimizer step
    step_samples: int  # of the whole optimizer step, over all ranks and micro-batches, without fillers
    indices: tuple[int, ...]  # of its samples in the data set, without a filler; empty for streams
