"""One micro-batch of this rank, and its part in an optimizer step."""

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Batch:
    """One micro-batch of this rank."""

    data: Any  # collated
    samples: int  # of this rank, really in it; 0: a filler, whose loss must not count
    scale: float  # times the mean loss before backward: samples * world / samples of the whole optimizer step
    ends_step: bool  # the last micro-batch of an optimizer step
    step_samples: int  # of the whole optimizer step, over all ranks and micro-batches
    indices: tuple[int, ...]  # this rank's real samples in the data set; empty for iterables
