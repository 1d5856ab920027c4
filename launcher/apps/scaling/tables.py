"""Tables of a scaling report as rows of text, for a terminal and for pages. A point is the measurement of one strategy,
scaling (strong or weak) and number of ranks. A strategy is a way to divide a training over ranks, such as ddp or fsdp.
"""

from collections.abc import Iterator, Sequence

from launcher.apps.scaling.findings import KINDS, ScaledRun, ScalingForecast, ScalingModel, ScalingReport, Spread

HEADS = (
    "STRATEGY", "SCALING", "RANKS", "SAMPLES/S", "RANGE", "SPEED-UP", "EFFICIENCY", "MEMORY", "STEP", "DATA", "COMPUTE",
    "OPTIMIZER", "COMM", "STRAGGLER", "OTHER",
)  # fmt: skip
FORECAST_HEADS = ("STRATEGY", "SCALING", "RANKS", "SPEED-UP", "RANGE", "EFFICIENCY")
VOLUME_HEADS = ("STRATEGY", "RANKS", "WHO SENDS MOST", "BY FORMULA", "SENT", "MESSAGES")
_NONE = "-"


def rows_of(points: Sequence[ScaledRun]) -> list[tuple[str, ...]]:
    """Return a table row, with the columns of HEADS, for each point: a strategy, scaling and number of ranks."""
    return [_row(one) for one in points]


def _row(point: ScaledRun) -> tuple[str, ...]:
    """Return the table row of one point, with the columns of HEADS."""
    parts, step_s = point.parts, point.step_s
    shares = [_NONE] * len(KINDS)
    if parts is not None and step_s:
        shares = [f"{getattr(parts, kind) / step_s:.0%}" for kind in KINDS]
    rate, speedup = point.samples_per_s, point.speedup
    return (
        point.strategy, point.scaling, str(point.ranks), _NONE if rate is None else f"{rate.usual:.4g}", _range(rate),
        _NONE if speedup is None else f"{speedup.usual:.2f}",
        _NONE if point.efficiency is None else f"{point.efficiency:.0%}",
        _NONE if point.memory_gb is None else f"{point.memory_gb:.2f} GB",
        _NONE if not step_s else f"{step_s * 1000:.4g} ms", *shares,
    )  # fmt: skip


def volume_rows(points: Sequence[ScaledRun]) -> list[tuple[str, ...]]:
    """Return table rows, with the columns of VOLUME_HEADS, of the bytes that ranks send in a step: by formula, and as
    traces show. There is a row for each strategy and number of ranks.
    """
    some = {(one.strategy, one.ranks): one for one in reversed(points)}
    return [
        (
            one.strategy, str(one.ranks), one.volume.who, one.volume.formula, _size(one.volume.bytes),
            _size(one.parts.bytes) if one.parts is not None and one.parts.messages else _NONE,
        )
        for one in points
        if one.volume is not None and some[one.strategy, one.ranks] is one
    ]  # fmt: skip


def volume_note(points: Sequence[ScaledRun]) -> str:
    """Return the heading of the table that `volume_rows` makes of the bytes sent in a step, or "" if that table is
    empty.
    """
    model = next((one.volume.model_bytes for one in points if one.volume is not None), 0.0)
    return f"bytes of a step, where n ranks train P = {_size(model)} of parameters:" if model else ""


def _size(count: float) -> str:
    """Return a number of bytes as text in megabytes, such as `12 MB`."""
    return f"{count / 1e6:.3g} MB"


def forecast_rows(forecasts: Sequence[ScalingForecast]) -> list[tuple[str, ...]]:
    """Return a table row for each forecast, with the columns of FORECAST_HEADS."""
    return [
        (
            one.strategy, one.scaling, str(one.ranks), f"{one.speedup.usual:.2f}", _range(one.speedup),
            f"{one.efficiency:.0%}",
        )
        for one in forecasts
    ]  # fmt: skip


def _range(found: Spread | None) -> str:
    """Return the range of a number as text, such as `1.2..3.4`, or "-" for None."""
    return _NONE if found is None else f"{found.low:.4g}..{found.high:.4g}"


def sentences(report: ScalingReport) -> list[str]:
    """Return for each point the sentence that says how much faster it is than the point with the fewest ranks, and
    where time is lost. The sentence begins with strategy and scaling if the report has several of these.
    """
    several = len({(one.strategy, one.scaling) for one in report.points}) > 1
    return [f"{f'{one.strategy}, {one.scaling}: ' if several else ''}{one.says}" for one in report.points]


def model_lines(models: Sequence[ScalingModel]) -> Iterator[str]:
    """Yield a sentence on each model that was fitted to measured step times: of which parts a step's time is made, such
    as one that ranks divide and one for messages.
    """
    for one in models:
        ranks = ", ".join(map(str, one.fitted_to))
        told = [f"{_time(one.serial_s)} whatever the number of ranks"]
        if one.divided_s:
            told.append(f"{_time(one.divided_s)} that ranks divide")
        if one.latency_known:
            speed = f", at {one.bandwidth_gb_s:.2g} GB/s" if one.bandwidth_gb_s else ""
            hops = "2 log2 n hops (a tree)" if one.tree else "2 (n - 1) hops (a ring)"
            told.append(f"{hops} of {_time(one.latency_s)}, and 2 (n - 1) / n times {_time(one.transfer_s)}{speed}")
        else:
            told.append("messages, of which one number of ranks alone cannot say whether hops or bytes cost more")
        yield f"{one.strategy}, {one.scaling}, fitted to {ranks} ranks: a step is {'; '.join(told)}"


def _time(seconds: float) -> str:
    """Return a time in seconds as text, such as `12 ms`."""
    return f"{seconds * 1000:.3g} ms"
