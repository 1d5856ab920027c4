"""Draw two pictures as SVG without scripts: speed-up over the number of ranks, and the parts of a step."""

import math
from collections.abc import Iterator, Sequence

from launcher.apps.report_pages import COLOURS, Place, dot, line, logarithmic, picture, words
from launcher.apps.scaling.findings import KINDS, ScaledRun, ScalingReport, Spread

_WIDE, _HIGH, _LEFT, _BELOW = 640, 360, 56, 44
_PARTS = {
    "data": "#a16207", "compute": "#15803d", "optimizer": "#0f766e", "communication": "#c2410c", "straggler": "#be123c",
    "other": "#6b7280",
}  # fmt: skip
_BAR, _GAP, _LABEL = 22, 10, 170


def speedup_picture(report: ScalingReport) -> str:
    """Return a picture of measured speed-ups with whiskers and forecasts with dashes and a band, on logarithmic axes,
    or "" if nothing is compared.
    """
    measured = [one for one in report.points if one.speedup is not None]
    if not measured:
        return ""
    counts = sorted({one.ranks for one in report.points} | {one.ranks for one in report.forecasts})
    least, most = counts[0], counts[-1]
    speeds = [spread.low for spread in _spreads(report)]
    low = min(1.0, *speeds)
    x = logarithmic(least, most, _LEFT, _WIDE - 16)
    y = logarithmic(low, max(most / least, *(spread.high for spread in _spreads(report))), _HIGH - _BELOW, 16)
    drawn = [*_axes(counts, x, y, low, most / least)]
    drawn.append(line([(x(least), y(1.0)), (x(most), y(most / least))], "#9ca3af", "2 4"))
    groups = list(dict.fromkeys((one.strategy, one.scaling) for one in measured))
    for number, group in enumerate(groups):
        drawn += _curve(report, group, COLOURS[number % len(COLOURS)], x, y)
        label = f"{group[0]}, {group[1]}"
        drawn.append(words(_LEFT + 12, 26 + 16 * number, label, COLOURS[number % len(COLOURS)]))
    return picture(_WIDE, _HIGH, "Speed-up over the number of ranks", drawn)


def _spreads(report: ScalingReport) -> list[Spread]:
    """Return all speed-ups, measured and forecast."""
    return [one.speedup for one in report.points if one.speedup is not None] + [one.speedup for one in report.forecasts]


def _curve(report: ScalingReport, group: tuple[str, str], colour: str, x: Place, y: Place) -> Iterator[str]:
    """Yield one curve with its whiskers and forecast."""
    mine = sorted(
        (one for one in report.points if (one.strategy, one.scaling) == group and one.rates), key=lambda one: one.ranks
    )
    points = [(one.ranks, one.speedup or Spread(1.0, 1.0, 1.0)) for one in mine]
    later = [(one.ranks, one.speedup) for one in report.forecasts if (one.strategy, one.scaling) == group]
    yield line([(x(ranks), y(spread.usual)) for ranks, spread in points], colour)
    for ranks, spread in points:
        yield line([(x(ranks), y(spread.low)), (x(ranks), y(spread.high))], colour)
        yield dot(x(ranks), y(spread.usual), colour, f"{ranks} ranks: {spread.usual:.2f}")
    if later:
        band = [(ranks, spread.high) for ranks, spread in later] + [
            (ranks, spread.low) for ranks, spread in later[::-1]
        ]
        corners = " ".join(f"{x(ranks):.1f},{y(value):.1f}" for ranks, value in band)
        yield f'<polygon points="{corners}" fill="{colour}" opacity="0.15"/>'
        yield line([(x(ranks), y(spread.usual)) for ranks, spread in [points[-1], *later]], colour, "6 4")


def _axes(counts: Sequence[int], x: Place, y: Place, low: float, high: float) -> Iterator[str]:
    """Yield the axes with their labels."""
    yield line([(_LEFT, 16), (_LEFT, _HIGH - _BELOW), (_WIDE - 16, _HIGH - _BELOW)], "currentColor")
    for count in counts:
        yield words(x(count), _HIGH - _BELOW + 18, str(count), anchor="middle")
    yield words((_LEFT + _WIDE) / 2, _HIGH - 8, "ranks", anchor="middle")
    for power in range(math.floor(math.log2(low)), math.ceil(math.log2(max(high, 2))) + 1):
        if y(2.0**power) <= _HIGH - _BELOW + 1 and y(2.0**power) >= 10:
            yield words(_LEFT - 8, y(2.0**power) + 4, f"{2.0**power:g}", anchor="end")


def parts_picture(points: Sequence[ScaledRun]) -> str:
    """Return a picture with a bar for each number of ranks, as long as its step, or "" if no steps were traced."""
    some = [one for one in points if one.parts is not None and one.step_s]
    if not some:
        return ""
    longest = max(one.step_s or 0.0 for one in some)
    drawn = []
    for number, (kind, colour) in enumerate(_PARTS.items()):
        at = 8 + 105 * number
        drawn.append(f'<rect x="{at}" y="6" width="10" height="10" fill="{colour}"/>{words(at + 14, 15, kind)}')
    for number, one in enumerate(some):
        drawn += _bar(one, 30 + number * (_BAR + _GAP), (_WIDE - _LABEL - 90) / longest)
    return picture(_WIDE, 30 + len(some) * (_BAR + _GAP), "What a step is made of", drawn)


def _bar(point: ScaledRun, top: float, scale: float) -> Iterator[str]:
    """Yield one bar, divided by kind of work."""
    label = f"{point.strategy}, {point.scaling}, {point.ranks}"
    yield words(_LABEL - 8, top + 15, label, anchor="end")
    at, step_s = float(_LABEL), point.step_s or 1.0
    for kind, colour in _PARTS.items():
        seconds = max(0.0, getattr(point.parts, kind))
        yield (
            f'<rect x="{at:.1f}" y="{top}" width="{seconds * scale:.1f}" height="{_BAR}" fill="{colour}">'
            f"<title>{KINDS[kind]}: {seconds * 1000:.3g} ms, {seconds / step_s:.0%}</title></rect>"
        )
        at += seconds * scale
    yield words(at + 6, top + 15, f"{step_s * 1000:.4g} ms")
