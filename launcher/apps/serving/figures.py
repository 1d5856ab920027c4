"""Metrics of a model's server, as OpenMetrics text."""

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from launcher.status.openmetrics import Family, lines_of

_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
_INPUTS = (1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0)


class Histogram:
    """A histogram in the sense of OpenMetrics: how many values are at most each bound, and their number and sum.

    `bounds` are in ascending order; a last bucket, +Inf, is added to them.
    """

    def __init__(self, bounds: Sequence[float]) -> None:
        self._bounds = bounds
        self._counts = [0] * (len(bounds) + 1)
        self._sum = 0.0

    def add(self, value: float) -> None:
        """Count one value in its bucket."""
        self._counts[bisect_left(self._bounds, value)] += 1
        self._sum += value

    def lines(self, name: str, help_: str, unit: str = "") -> Iterator[str]:
        """Yield the histogram as lines of OpenMetrics, under `name`, with the explanation `help_` and, if not "", a
        unit.
        """
        yield f"# TYPE {name} histogram\n"
        if unit:
            yield f"# UNIT {name} {unit}\n"
        yield f"# HELP {name} {help_}\n"
        count = 0
        for bound, more in zip((*map(str, self._bounds), "+Inf"), self._counts, strict=True):
            count += more
            yield f'{name}_bucket{{le="{bound}"}} {count}\n'
        yield f"{name}_count {count}\n"
        yield f"{name}_sum {self._sum!r}\n"


@dataclass(slots=True)
class ServingFigures:
    """Counters since the server was started: requests by (path, status), times, batches, refused requests, workers that
    died, and changes to a newer checkpoint (`takeovers`).
    """

    requests: Counter[tuple[str, int]] = field(default_factory=Counter)  # by (path, status)
    seconds: Histogram = field(default_factory=lambda: Histogram(_SECONDS))  # from a request to its response
    batch_inputs: Histogram = field(default_factory=lambda: Histogram(_INPUTS))
    batch_seconds: Histogram = field(default_factory=lambda: Histogram(_SECONDS))
    refused: int = 0
    lost_workers: int = 0
    takeovers: int = 0

    def batch(self, inputs: int, seconds: float) -> None:
        """Count a batch of `inputs` inputs that was computed in `seconds`."""
        self.batch_inputs.add(inputs)
        self.batch_seconds.add(seconds)


@dataclass(frozen=True, slots=True)
class ServingState:
    """The present state of a model's server: the checkpoint's step, workers, waiting clients, and the use of the cache.

    `shared`, `hits` and `misses` are counted from the server's start on.
    """

    run: str
    step: int | None  # None: there is no checkpoint
    workers: int  # of the pool that answers now
    idle: int  # workers that compute nothing
    waiting: int  # clients without an answer, including those whose input is being computed
    shared: int  # inputs that were equal to one already waiting, whose answer they got
    cached: int  # answers in the cache
    hits: int  # inputs that were answered from the cache
    misses: int  # inputs that were not in it


def exposition(figures: ServingFigures, state: ServingState) -> str:
    """Return the metrics in the OpenMetrics format."""

    def one(name: str, help_: str, value: float | None, type_: str = "gauge") -> Family:
        """Return a family with one value."""
        return Family(f"launch_serve_{name}", help_, [({"run": state.run}, value)], type=type_)

    by_status = [({"path": path, "status": str(status)}, float(n)) for (path, status), n in figures.requests.items()]
    families = [
        Family("launch_serve_requests", "Requests by path and status.", by_status, type="counter"),
        one("step", "The step of the checkpoint that answers.", state.step),
        one("workers", "Processes that can compute.", state.workers),
        one("workers_idle", "Those of them that have nothing to do.", state.idle),
        one("waiting", "Inputs that wait for an answer.", state.waiting),
        one("shared", "Inputs that were computed once with an equal one.", state.shared, "counter"),
        one("cached", "Answers that are kept.", state.cached),
        one("cache_hits", "Inputs that were answered from the cache.", state.hits, "counter"),
        one("cache_misses", "Inputs that were not.", state.misses, "counter"),
        one("refused", "Requests that were sent away because too many wait.", figures.refused, "counter"),
        one("workers_lost", "Workers that ended in the middle of a batch.", figures.lost_workers, "counter"),
        one("takeovers", "Newer checkpoints that were taken over.", figures.takeovers, "counter"),
    ]
    lines = [line for family in families for line in lines_of(family)]
    lines += figures.seconds.lines("launch_serve_request_seconds", "Time to answer a request.", "seconds")
    lines += figures.batch_seconds.lines("launch_serve_batch_seconds", "Time to compute a batch.", "seconds")
    lines += figures.batch_inputs.lines("launch_serve_batch_inputs", "Inputs of a batch.")
    return "".join(lines) + "# EOF\n"
