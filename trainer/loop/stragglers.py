"""What ranks tell each other with each line of metrics: the time of their own work, and their memory."""

import statistics
import sys
from collections.abc import Mapping, Sequence
from typing import Any

import torch

_LINES = 5  # in a row: a hiccup is no straggler
_MATTERS = 0.05  # of a step's time


def own_seconds(seconds: Mapping[str, float], *, meets_in_forward: bool) -> float:
    """Of the phases in which a rank waits for no other one: the slow one's delay is seen there, and nowhere else."""
    return sum(seconds.get(phase, 0.0) for phase in (("data",) if meets_in_forward else ("data", "forward")))


def peak_memory_gb(device: torch.device) -> float:
    """Since the start: of the tensors on a GPU; on a CPU of the whole process."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device) / 1e9
    import resource  # late: no rank is to have more of the standard library from its zygote than scripts have

    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024) / 1e9


def in_line(told: Sequence[Sequence[float]]) -> dict[str, Any]:
    """For a line of metrics, of every rank's seconds and memory."""
    own = [seconds for seconds, _ in told]
    found: dict[str, Any] = {"memory_gb": max(memory for _, memory in told)}
    if len(own) > 1:
        spread = {"least": min(own), "median": statistics.median_low(own), "most": max(own)}
        found |= {"own_seconds": spread, "slowest_rank": own.index(max(own))}
    return found


class Stragglers:
    """Finds the rank that all others wait for, line after line."""

    def __init__(self, factor: float) -> None:
        self._factor = factor
        self._rank, self._lines = -1, 0
        self._told: set[int] = set()

    def take(self, line: Mapping[str, Any], step_s: float) -> str:
        """What is to be said of it, once of each rank; else nothing."""
        slow = self._slow_one(line, step_s)
        self._lines = self._lines + 1 if slow == self._rank else 1
        self._rank = slow
        if slow < 0 or slow in self._told or self._lines < _LINES:
            return ""
        self._told.add(slow)
        own = line["own_seconds"]
        return (
            f"rank {slow} is slow: its own work takes {own['most']:.3g} s of each step, the usual rank's "
            f"{own['median']:.3g} s, and all others wait for it\n"
            f"hint: look at its node (launch top): other programs, a hot GPU, a slow disk under the data; "
            f"where there is a spare, `launch nodes move` has its ranks there"
        )

    def _slow_one(self, line: Mapping[str, Any], step_s: float) -> int:
        """-1: nobody."""
        if "slowest_rank" not in line:
            return -1
        own = line["own_seconds"]
        most, median = own["most"], own["median"]
        rank: int = line["slowest_rank"]
        return rank if most > self._factor * median and most - median > _MATTERS * step_s else -1
