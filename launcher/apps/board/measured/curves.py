"""Curves for the page to draw: every point if there are few, else the smallest and largest value for each pixel."""

import math
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from itertools import islice
from operator import le
from typing import Literal

import msgspec

from launcher.apps.board.answers import Number, numbers
from launcher.apps.board.measured.reading import MeasuredRun
from launcher.apps.board.measured.table import MISSING

By = Literal["step", "time"]
_POINTS_A_PIXEL = 2  # more than these cannot be told from each other
_FIRST = 12  # metrics that are shown where none is named
MOST_NAMES, _MOST_PIXELS = 100, 4000


class CurveWindow(msgspec.Struct, frozen=True):
    """The requested part of the curves: from `start` to `end`, to be drawn `px` pixels wide."""

    by: By = "step"  # "step": `start` and `end` are steps; "time": they are Unix seconds
    start: float = -math.inf
    end: float = math.inf
    px: int = 800


class ExactCurve(msgspec.Struct, frozen=True):
    """A curve with every point; `x` are steps or times."""

    x: list[Number]
    y: list[Number]  # the values


class PixelCurve(msgspec.Struct, frozen=True):
    """A curve reduced to pixels: for each pixel that has points, the first position, the smallest and the largest
    value. `odd` are entries that also have NaN or infinity; `last` is the last point.
    """

    x: list[Number]  # of each entry: the first step or time in the pixel
    min: list[float | None]  # None: no value in the pixel is finite
    max: list[float | None]
    odd: list[int]  # indexes of entries that include NaN or infinity
    last: tuple[Number, Number]  # the last point: a pixel may include many


class Curves(msgspec.Struct, frozen=True, rename={"start": "from", "end": "to"}):
    """The curves of several metrics, and the range of steps or times that they cover. `names` are all metrics of the
    run, `exact` tells whether every point is in, and `glimpse` whether they were made from a sample.
    """

    by: By  # steps or times
    start: float | None  # the first step or time in the curves; None: they are empty
    end: float | None  # the last one; None: they are empty
    exact: bool
    names: list[str]  # all metrics of the run
    curves: dict[str, ExactCurve | PixelCurve]  # by metric
    glimpse: bool = False  # whether they were made from a sample of the points


def curves(
    run: MeasuredRun, names: Sequence[str], window: CurveWindow, *, glimpse: bool = False, first: int = _FIRST
) -> Curves:
    """Return the curves, within `window`, of the metrics in `names`, at most `MOST_NAMES` of them; names of no metric
    are left out. If `names` is empty, return those of the first `first` names in `run.names`.

    `glimpse` only marks the curves as made from a sample of the points.
    """
    known = run.names
    wanted = [name for name in names if name in known][:MOST_NAMES] if names else known[:first]
    lines = {name: _within(_line(run, name, window.by), window) for name in wanted}
    ends = [(xs[start], xs[end - 1]) for xs, _, start, end in lines.values() if end > start]
    px = max(16, min(window.px, _MOST_PIXELS))
    low = min((first for first, _ in ends), default=None)
    high = max((last for _, last in ends), default=None)
    drawn = {name: _drawn(line, low or 0.0, high or 0.0, px) for name, line in lines.items()}
    exact = not glimpse and all(isinstance(one, ExactCurve) for one in drawn.values())
    return Curves(window.by, low, high, exact, known, drawn, glimpse)


_Line = tuple["array[int] | array[float]", "array[float]", int, int]  # where it is, what it is, and which part


def _line(run: MeasuredRun, name: str, by: By) -> "tuple[array[int] | array[float], array[float]]":
    """Return (positions, values) of a metric in ascending order; positions are steps or times, as `by` says.

    They may be the run's own arrays and not copies, so the caller must not change them.
    """
    if (whole := run.column(name)) is not None:
        steps, at, values = whole
        if by == "step":
            return steps, values
        if at[0] > 0 and all(map(le, at, islice(at, 1, None))):
            return at, values
    if by == "step":
        return _arrays((float(step), value) for step, _, value in run.points(name))
    return _arrays(sorted(((at, value) for _, at, value in run.points(name) if at > 0), key=lambda point: point[0]))


def _arrays(points: "Iterator[tuple[float, float]] | list[tuple[float, float]]") -> "tuple[array[float], array[float]]":
    """Return (positions, values) of the points as two arrays."""
    xs, ys = array("d"), array("d")
    for x, y in points:
        xs.append(x)
        ys.append(y)
    return xs, ys


def _within(line: "tuple[array[int] | array[float], array[float]]", window: CurveWindow) -> _Line:
    """Return (positions, values, index of the first point in the window, index after the last point in it) for a curve
    `line`, which is (ascending positions, values); positions are steps or Unix times, as the window's are.
    """
    xs, ys = line
    return xs, ys, bisect_left(xs, window.start), bisect_right(xs, window.end)


def _drawn(line: _Line, low: float, high: float, px: int) -> ExactCurve | PixelCurve:
    """Return the curve with every point in the window or, if these are more than two for each pixel, with one entry for
    each pixel that has points. The positions (steps or times) from `low` to `high` are divided into `px` pixels.
    """
    xs, ys, start, end = line
    if end - start <= _POINTS_A_PIXEL * px:
        return ExactCurve(list(xs[start:end]), numbers(ys[start:end]))
    found, odd = list[tuple[float, float | None, float | None]](), list[int]()
    at = start
    for pixel in range(1, px + 1):
        until = end if pixel == px else bisect_left(xs, low + (high - low) * pixel / px, at, end)
        if until > at:
            least, most, is_odd = _extent(ys[at:until])
            if is_odd:
                odd.append(len(found))
            found.append((xs[at], least, most))
        at = until
    x, last = numbers((xs[end - 1], ys[end - 1]))
    return PixelCurve(
        [x for x, _, _ in found], [low for _, low, _ in found], [high for _, _, high in found], odd, (x, last)
    )


def _extent(values: "array[float]") -> tuple[float | None, float | None, bool]:
    """Return (smallest, largest finite value, whether some values are not finite) of `values`, which must not be empty;
    both are None if no value is finite.
    """
    if math.isfinite(sum(values)):
        return _short(min(values)), _short(max(values)), False
    finite = [value for value in values if math.isfinite(value)]
    odd = len(finite) < len(values)
    return (_short(min(finite)), _short(max(finite)), odd) if finite else (None, None, odd)


def _short(value: float) -> float:
    """Return the value rounded to seven significant digits, as a picture shows no more and the answer gets shorter."""
    return float(f"{value:.7g}")


def thumbnail(values: Sequence[float], most: int) -> list[float | None]:
    """Return the values for the small curve in a row of the table: all of them, or if there are more than `most`, so
    many of them at equal distances from the first to the last.

    None stands for a value that is missing or not finite.
    """
    if len(values) > most:
        values = [values[round(place * (len(values) - 1) / (most - 1))] for place in range(most)]
    return [_short(value) if math.isfinite(value) and value != MISSING else None for value in values]
