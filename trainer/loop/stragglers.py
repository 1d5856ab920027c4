"""Add each rank's own time and memory to every line of metrics, and find slow ranks."""

import statistics
import sys
from collections.abc import Mapping, Sequence
from typing import Any

import torch

_LINES = 5  # in a row: a hiccup is no straggler
_MATTERS = 0.05  # of a step's time


def own_seconds(seconds: Mapping[str, float], *, meets_in_forward: bool) -> float:
    """Return this rank's seconds in the phases in which a rank waits for no other rank; they show a slow rank.

    `seconds` are by phase. With `meets_in_forward`, ranks wait for each other in the forward pass, which then does not
    count.
    """
    return sum(seconds.get(phase, 0.0) for phase in (("data",) if meets_in_forward else ("data", "forward")))


def peak_memory_gb(device: torch.device) -> float:
    """Return the peak memory in GB since the process started: of tensors on a GPU, of the whole process on a CPU."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device) / 1e9
    import resource  # late: no rank is to have more of the standard library from its zygote than scripts have

    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024) / 1e9


def in_line(of_ranks: Sequence[Sequence[float]]) -> dict[str, Any]:
    """Return fields for a line of metrics: `memory_gb`, the most of any rank, and with several ranks two more.

    These are `own_seconds`, a dict of `least`, `median` and `most`, and `slowest_rank`. `of_ranks` has, for each rank,
    a pair of the seconds in which it waited for no other and its peak memory in GB.
    """
    own = [seconds for seconds, _ in of_ranks]
    found: dict[str, Any] = {"memory_gb": max(memory for _, memory in of_ranks)}
    if len(own) > 1:
        spread = {"least": min(own), "median": statistics.median_low(own), "most": max(own)}
        found |= {"own_seconds": spread, "slowest_rank": own.index(max(own))}
    return found


class Stragglers:
    """Finds a rank for which all others wait, from one line of metrics after the other.

    A rank is slow in a line if its own work takes over `factor` times as long as the median rank's, and longer by over
    5 % of a step. `take` reports a rank, only once, when it was slow in five lines in a row.
    """

    def __init__(self, factor: float) -> None:
        self._factor = factor
        self._rank, self._lines = -1, 0
        self._reported: set[int] = set()

    def take(self, line: Mapping[str, Any], step_s: float) -> str:
        """Return a message if the same rank was slow in the last five lines, this one included, else "".

        Each rank is named only once. `line` is a line of metrics with the fields that `in_line` returns, among them the
        slowest rank's own seconds and the median; `step_s` is the duration of a step.
        """
        slow = self._slow_rank(line, step_s)
        self._lines = self._lines + 1 if slow == self._rank else 1
        self._rank = slow
        if slow < 0 or slow in self._reported or self._lines < _LINES:
            return ""
        self._reported.add(slow)
        own = line["own_seconds"]
        return (
            f"rank {slow} is slow: its own work takes {own['most']:.3g} s of each step, the usual rank's "
            f"{own['median']:.3g} s, and all others wait for it\n"
            f"hint: look at its node (launch top): other programs, a hot GPU, a slow disk under the data; "
            f"where there is a spare, `launch nodes move` has its ranks there"
        )

    def _slow_rank(self, line: Mapping[str, Any], step_s: float) -> int:
        """Return the rank that this line of metrics shows to be slow, or -1 if none is.

        Its own work takes over `factor` times as long as the median rank's, and longer by over 5 % of `step_s`, the
        duration of a step.
        """
        if "slowest_rank" not in line:
            return -1
        own = line["own_seconds"]
        most, median = own["most"], own["median"]
        rank: int = line["slowest_rank"]
        return rank if most > self._factor * median and most - median > _MATTERS * step_s else -1
