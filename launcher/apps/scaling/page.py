"""Write a report on scaling as an HTML page that needs no network, as Markdown, and as JSON. A point is the measurement
of one strategy, scaling (strong or weak) and number of ranks. A strategy is a way to divide a training over ranks, such
as ddp or fsdp.
"""

import html
import math
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec

from launcher.apps.report_pages import COLOURS, Place, bullets, dot, line, logarithmic, page, picture, table, words
from launcher.apps.scaling.findings import KINDS, ScaledRun, ScalingReport, Spread
from launcher.apps.scaling.tables import (
    FORECAST_HEADS,
    HEADS,
    VOLUME_HEADS,
    forecast_rows,
    model_lines,
    rows_of,
    sentences,
    volume_note,
    volume_rows,
)
from launcher.errors import BadInput

_PARTS_TITLE = "Where the time of a step goes"
_WIDE, _HIGH, _LEFT, _BELOW = 640, 360, 56, 44
_PARTS = {
    "data": "#a16207", "compute": "#15803d", "optimizer": "#0f766e", "communication": "#c2410c", "straggler": "#be123c",
    "other": "#6b7280",
}  # fmt: skip
_BAR, _GAP, _LABEL = 22, 10, 170


def speedup_picture(report: ScalingReport) -> str:
    """Return a picture (SVG) of the speed-ups: measured ones with error bars, forecasts with a band, on logarithmic
    axes.

    Return "" if no two numbers of ranks were compared.
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
    """Return the median and range of each speed-up in the report, first the measured ones, then the forecasts."""
    return [one.speedup for one in report.points if one.speedup is not None] + [one.speedup for one in report.forecasts]


def _curve(report: ScalingReport, group: tuple[str, str], colour: str, x: Place, y: Place) -> Iterator[str]:
    """Yield the curve of one strategy and scaling (`group`) as SVG, with its error bars and its forecast; `x` and `y`
    map values to positions.
    """
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
    """Yield the axes with their labels as SVG: the numbers of ranks in `counts`, and powers of two from the speed-up
    `low` to `high`.

    `x` and `y` map values to positions.
    """
    yield line([(_LEFT, 16), (_LEFT, _HIGH - _BELOW), (_WIDE - 16, _HIGH - _BELOW)], "currentColor")
    for count in counts:
        yield words(x(count), _HIGH - _BELOW + 18, str(count), anchor="middle")
    yield words((_LEFT + _WIDE) / 2, _HIGH - 8, "ranks", anchor="middle")
    for power in range(math.floor(math.log2(low)), math.ceil(math.log2(max(high, 2))) + 1):
        if y(2.0**power) <= _HIGH - _BELOW + 1 and y(2.0**power) >= 10:
            yield words(_LEFT - 8, y(2.0**power) + 4, f"{2.0**power:g}", anchor="end")


def parts_picture(points: Sequence[ScaledRun]) -> str:
    """Return a picture (SVG) with a bar for each point, as long as a step takes and divided by kind of work: compute,
    communication and so on. Points of which no steps were traced have no bar; return "" if there is none.
    """
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
    """Yield one bar as SVG, divided by kind of work; `top` is its position and `scale` the pixels per second."""
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


def write_pages(report: ScalingReport, folder: Path) -> list[Path]:
    """Write index.html, scaling.md and scaling.json into a folder, and return their paths.

    Raise BadInput if they cannot be written.
    """
    written = {
        "index.html": html_page(report),
        "scaling.md": markdown_page(report),
        "scaling.json": msgspec.json.format(msgspec.json.encode(report)).decode() + "\n",
    }
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, text in written.items():
            (folder / name).write_text(text)
    except OSError as error:
        raise BadInput(f"-o {folder}: {error}") from error
    return [folder / name for name in written]


def html_page(report: ScalingReport) -> str:
    """Return the report as HTML."""
    return page(f"One to many: {report.spec}", _html(report))


def _html(report: ScalingReport) -> Iterator[str]:
    """Yield the parts of the page as HTML."""
    yield f"<h1>{html.escape(report.spec)} on one rank and on many</h1>"
    yield f"<p>{html.escape(_measured_how(report))}</p>"
    yield bullets([*sentences(report), *report.notes])
    if report.advice:
        yield "<h2>What would help first</h2>"
        yield bullets(report.advice)
    yield "<h2>Measured</h2>"
    yield table(HEADS, rows_of(report.points))
    if rows := volume_rows(report.points):
        yield f"<h2>What moves</h2>\n<p>{html.escape(volume_note(report.points))}</p>"
        yield table(VOLUME_HEADS, rows)
    if picture := parts_picture(report.points):
        yield f"<h2>{_PARTS_TITLE}</h2>\n{picture}"
    if picture := speedup_picture(report):
        yield f"<h2>Speed-up</h2>\n{picture}"
    if report.forecasts:
        yield "<h2>More ranks, by a model</h2>"
        yield bullets(model_lines(report.models))
        yield table(FORECAST_HEADS, forecast_rows(report.forecasts))


def _measured_how(report: ScalingReport) -> str:
    """Return two sentences for the report: how many steps of each training were measured, where and in what time, and
    what the ranges of rates and speed-ups span.
    """
    rounds = f", {report.rounds} rounds" if report.rounds > 1 else ""
    return (
        f"{report.steps} steps of each training{rounds}, on {report.on}, in {report.took_s:.0f} s. Ranges of rates are "
        "from the slowest line of metrics to the fastest, those of speed-ups are without a tenth at each end."
    )


def markdown_page(report: ScalingReport) -> str:
    """Return the report as Markdown."""
    return "\n".join(_markdown(report)) + "\n"


def _markdown(report: ScalingReport) -> Iterator[str]:
    """Yield the lines of the report in Markdown."""
    yield f"# {_marked(report.spec)} on one rank and on many"
    yield from ("", _marked(_measured_how(report)), "")
    yield from (f"- {_marked(line)}" for line in (*sentences(report), *report.notes))
    yield from ("", *_marked_table(HEADS, rows_of(report.points)))
    if rows := volume_rows(report.points):
        yield from (
            "",
            "## What moves",
            "",
            _marked(volume_note(report.points)),
            "",
            *_marked_table(VOLUME_HEADS, rows),
        )
    if report.advice:
        yield from ("", "## What would help first", "", *(f"- {_marked(line)}" for line in report.advice))
    if report.forecasts:
        yield from ("", "## More ranks, by a model", "", *(f"- {_marked(line)}" for line in model_lines(report.models)))
        yield from ("", *_marked_table(FORECAST_HEADS, forecast_rows(report.forecasts)))


def _marked_table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> Iterator[str]:
    """Yield the lines of a Markdown table."""
    yield f"| {' | '.join(heads)} |"
    yield f"|{'---|' * len(heads)}"
    for row in rows:
        yield f"| {' | '.join(_marked(cell) for cell in row)} |"


def _marked(text: str) -> str:
    """Return a text from a spec or a log with all of Markdown's markup escaped."""
    plain = html.escape(text.replace("\n", " "), quote=False)
    return "".join(f"\\{one}" if one in "\\`*_[]|#" else one for one in plain)
