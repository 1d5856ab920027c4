"""Extract the speed of a run from its metrics. Some steps are traced: recorded by torch's profiler, and divided by kind
of work.
"""

import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from launcher.apps.scaling.findings import KINDS, Spread, StepParts

_TRACED = "traced/"


@dataclass(frozen=True, slots=True)
class MeasuredSpeed:
    """The speed of one training in one or several runs: samples per second and seconds per step for each logged line of
    all runs, the most memory that a rank used, the `shares` of a traced step by kind of work, (bytes, messages) that a
    rank `sent` per step, and the bytes of all trained parameters (0: nothing was traced).
    """

    rates: tuple[float, ...]  # samples per second, for each logged line
    steps_s: tuple[float, ...]  # seconds of a step, for each logged line
    memory_gb: float | None  # of the rank that uses the most; None: not reported
    shares: tuple[Mapping[str, float], ...]  # of a traced step's time by kind of work, one dict for each traced run
    sent: tuple[float, float]  # (bytes, messages) per step and rank; zeros: nothing was traced
    model_bytes: float  # of all trained parameters; 0: nothing was traced

    @property
    def step_samples(self) -> float | None:
        """The samples of a step over all ranks (median), or None if nothing was measured."""
        each = [rate * seconds for rate, seconds in zip(self.rates, self.steps_s, strict=True)]
        return statistics.median(each) if each else None


def measured(runs: Sequence[Mapping[int, Mapping[str, float]]], first: int, last: int) -> MeasuredSpeed:
    """Return the speed of a training from the metrics of its runs, each given as {step: {metric: value}}.

    Rates and step times are kept for each logged line, those of all runs one after the other; callers take medians.
    Only lines after step `first` and up to `last` count. A line's rate is `samples_per_s`; the seconds of its steps are
    the difference of `elapsed_s` (`at` if there is none) to the line before, divided by the steps between them. The
    memory is the largest `memory_gb` in any line of any run.

    If steps were traced, the last line with a `traced/step` above 0 gives a run's trace: the metrics `traced/…`. Each
    run's times by kind of work are divided by its `traced/step`; bytes and messages are means over the runs.
    """
    lines = [line for rows in runs for line in _lines(rows, first, last)]
    memory = [row["memory_gb"] for rows in runs for row in rows.values() if "memory_gb" in row]
    traces = [trace for rows in runs if (trace := _trace(rows))]
    return MeasuredSpeed(
        tuple(rate for rate, _ in lines),
        tuple(seconds for _, seconds in lines),
        max(memory, default=None),
        tuple({name: trace.get(name, 0.0) / trace["step"] for name in (*KINDS, "hidden")} for trace in traces),
        (_mean(traces, "bytes"), _mean(traces, "messages")),
        _mean(traces, "model_bytes"),
    )


def _lines(rows: Mapping[int, Mapping[str, float]], first: int, last: int) -> Iterator[tuple[float, float]]:
    """Yield (samples per second, wall-clock seconds per step) for each logged line after step `first` and up to `last`.

    `rows` is {step: {metric: value}}, where lines without a rate do not count. The seconds are the mean over the steps
    since the line before.
    """
    before: tuple[int, float] | None = None
    for step, row in rows.items():
        if "samples_per_s" not in row or step > last:
            continue
        at = row.get("elapsed_s", row.get("at"))
        if before is not None and at is not None and step > first and at > before[1]:
            yield row["samples_per_s"], (at - before[1]) / (step - before[0])
        before = None if at is None else (step, at)


def _trace(rows: Mapping[int, Mapping[str, float]]) -> dict[str, float]:
    """Return the trace's metrics, {metric: value}, in the last line of `rows` that has some, or an empty dict if no
    step was traced. `rows` is {step: {metric: value}}, where these begin with `traced/`, which is removed.
    """
    for row in reversed(list(rows.values())):
        if row.get(f"{_TRACED}step", 0.0) > 0:
            return {name.removeprefix(_TRACED): value for name, value in row.items() if name.startswith(_TRACED)}
    return {}


def _mean(traces: Sequence[Mapping[str, float]], name: str) -> float:
    """Return the mean of the value `name` over the traces, where one without it counts as 0; 0 if there are none."""
    return statistics.fmean(trace.get(name, 0.0) for trace in traces) if traces else 0.0


def parts_of(found: MeasuredSpeed) -> StepParts | None:
    """Return the seconds of a typical step by kind of work, or None if no step was traced.

    Shares of the traced steps are used, because tracing itself makes steps slower.
    """
    if not found.shares or not found.steps_s:
        return None
    step_s = statistics.median(found.steps_s)
    seconds = {name: step_s * _mean(found.shares, name) for name in (*KINDS, "hidden")}
    return StepParts(**seconds, bytes=found.sent[0], messages=found.sent[1])


def spread(values: Sequence[float], share: float = 0.0) -> Spread:
    """Return the median and the range of the values; the share `share` of them is left out at each end."""
    ordered = sorted(values)
    cut = int(share * len(ordered))
    return Spread(statistics.median(ordered), ordered[cut], ordered[-1 - cut])


def ratios(many: Sequence[float], one: Sequence[float]) -> Spread:
    """Return the median and range of the ratios of each value in `many` to each in `one`.

    A tenth is left out at each end, because the outliers of both multiply.
    """
    return spread([other / base for other in many for base in one], 0.1)
