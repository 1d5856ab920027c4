"""Write a report on collectives as one HTML file that needs no network."""

import html
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

from launcher.apps.collectives.findings import CollectiveLine, CollectivesReport
from launcher.apps.collectives.tables import (
    HEADS,
    PAIR_HEADS,
    duration,
    heading,
    notes,
    pair_rows,
    problems,
    rows_of,
    size,
)
from launcher.apps.report_pages import COLOURS, Place, bullets, dot, line, logarithmic, page, picture, table, words
from launcher.errors import BadInput
from launcher.spec.amounts import rate

_WIDE, _HIGH, _LEFT, _BELOW, _LEGEND = 760, 380, 84, 44, 150
_COPY, _SLOW, _PAIR = "#9ca3af", "#be123c", "#0b6bcb"
_BAR, _GAP, _LABEL, _FIGURES = 22, 10, 90, 200

Curve = tuple[str, str, Sequence[tuple[int, float]]]  # name, colour, size and value


def rates_picture(report: CollectivesReport, ranks: int) -> str:
    """Return a picture (SVG) of bus bandwidth over message size, with the memory copy beside it; "" if nothing was
    timed on these ranks.
    """
    curves = _curves(report, ranks, lambda one: one.bus_bytes_per_s)
    if not curves:
        return ""
    sizes = {count for _, _, points in curves for count, _ in points}
    copy = [(one.size_bytes, one.bytes_per_s) for one in report.copies if min(sizes) <= one.size_bytes <= max(sizes)]
    if copy:
        curves.append(("memory copy", _COPY, copy))
    return _over_sizes(f"Bus bandwidth over size, {ranks} ranks", curves, rate)


def times_picture(report: CollectivesReport, ranks: int) -> str:
    """Return a picture (SVG) of median time over message size, measured on `ranks` ranks; "" if nothing was timed on
    these.

    Its left end shows what a message costs however small it is.
    """
    curves = _curves(report, ranks, lambda one: one.usual_s)
    return _over_sizes(f"Time over size, {ranks} ranks", curves, duration) if curves else ""


def _curves(report: CollectivesReport, ranks: int, value: Callable[[CollectiveLine], float]) -> list[Curve]:
    """Return a curve for each operation as measured on this number of ranks: over the size in bytes the number that
    `value` returns for a line of the report. A line for which that is 0 is left out.

    An operation has the same colour in every picture.
    """
    names = list(dict.fromkeys(one.operation for one in report.lines))
    mine = [one for one in report.lines if one.ranks == ranks and one.size_bytes and value(one) > 0]
    return [
        (name, COLOURS[number % len(COLOURS)], points)
        for number, name in enumerate(names)
        if (points := sorted((one.size_bytes, value(one)) for one in mine if one.operation == name))
    ]


def _over_sizes(title: str, curves: Sequence[Curve], label: Callable[[float], str]) -> str:
    """Return a picture (SVG) with this title of curves over message size, with two logarithmic axes; `label` formats
    the values.
    """
    sizes = sorted({count for _, _, points in curves for count, _ in points})
    values = [value for _, _, points in curves for _, value in points]
    low, high = _power(min(values), math.floor), _power(max(values), math.ceil)
    x = logarithmic(sizes[0], sizes[-1], _LEFT + 12, _WIDE - _LEGEND - 12)
    y = logarithmic(low, high, _HIGH - _BELOW, 16)
    drawn = [*_axes(sizes, x, y, low, high, label)]
    for number, (name, colour, points) in enumerate(curves):
        drawn.append(line([(x(count), y(value)) for count, value in points], colour, "6 4" if colour == _COPY else ""))
        drawn += [dot(x(count), y(value), colour, f"{name}, {size(count)}: {label(value)}") for count, value in points]
        drawn.append(words(_WIDE - _LEGEND + 12, 26 + 18 * number, name, colour))
    return picture(_WIDE, _HIGH, title, drawn)


def _power(value: float, rounded: Callable[[float], int]) -> float:
    """Return the next power of ten from `value`, up or down as `rounded` (math.ceil or math.floor) rounds; never
    `value` itself.
    """
    power = rounded(math.log10(value))
    if 10.0**power == value:
        power += 1 if rounded is math.ceil else -1
    return 10.0**power


def _axes(
    sizes: Sequence[int], x: Place, y: Place, low: float, high: float, label: Callable[[float], str]
) -> Iterable[str]:
    """Yield the axes with their labels as SVG; `x` and `y` return the position of a size and of a value.

    The horizontal axis has a label for each of `sizes` that has room. The vertical one is from `low` to `high`, with a
    label, as `label` formats it, at each power of ten.
    """
    right = _WIDE - _LEGEND
    yield line([(_LEFT, 16), (_LEFT, _HIGH - _BELOW), (right, _HIGH - _BELOW)], "currentColor")
    last = -math.inf
    for count in sizes:
        if x(count) - last >= 56:  # as wide as a label
            yield words(x(count), _HIGH - _BELOW + 18, size(count), anchor="middle")
            last = x(count)
    yield words((_LEFT + right) / 2, _HIGH - 8, "size", anchor="middle")
    for power in range(round(math.log10(low)), round(math.log10(high)) + 1):
        yield words(_LEFT - 8, y(10.0**power) + 4, label(10.0**power), anchor="end")
        yield line([(_LEFT - 4, y(10.0**power)), (_LEFT, y(10.0**power))], "currentColor")


def pairs_picture(report: CollectivesReport) -> str:
    """Return a picture (SVG) with a bar for the rate of each pair of nodes, or "" if there is no pair."""
    fastest = max((one.bytes_per_s for one in report.pairs), default=0.0)
    if not fastest:
        return ""
    drawn = list[str]()
    for number, one in enumerate(report.pairs):
        top, long = 6 + number * (_BAR + _GAP), one.bytes_per_s / fastest * (_WIDE - _LABEL - _FIGURES)
        colour = _SLOW if one.slow else _PAIR
        drawn.append(words(_LABEL - 8, top + 15, f"{one.one} and {one.other}", anchor="end"))
        drawn.append(f'<rect x="{_LABEL}" y="{top}" width="{long:.1f}" height="{_BAR}" fill="{colour}"/>')
        said = f"{rate(one.bytes_per_s)}, {duration(one.round_trip_s)}" + (", slow" if one.slow else "")
        drawn.append(words(_LABEL + long + 6, top + 15, said))
    return picture(_WIDE, 12 + len(report.pairs) * (_BAR + _GAP), "Pairs of nodes by send and recv", drawn)


def pictures(report: CollectivesReport) -> Iterator[tuple[str, str]]:
    """Yield (title, picture as SVG) for each picture of the report."""
    for ranks in dict.fromkeys(one.ranks for one in report.lines):
        for title, drawn in (
            (f"Bus bandwidth, {ranks} ranks", rates_picture(report, ranks)),
            (f"Time, {ranks} ranks", times_picture(report, ranks)),
        ):
            if drawn:
                yield title, drawn
    if drawn := pairs_picture(report):
        yield "Pairs of nodes", drawn


def write_page(report: CollectivesReport, file: Path) -> Path:
    """Write the report as a page and return its path; raise BadInput if it cannot be written."""
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(html_page(report))
    except OSError as error:
        raise BadInput(f"-o {file}: {error}") from error
    return file


def html_page(report: CollectivesReport) -> str:
    """Return the report as HTML."""
    return page(f"Collectives of {report.cluster}", _html(report))


def _html(report: CollectivesReport) -> Iterator[str]:
    """Yield the parts of the page as HTML."""
    yield f"<h1>Collectives of {html.escape(report.cluster)}</h1>"
    yield f"<p>{html.escape(heading(report))}</p>"
    if said := [*problems(report), *notes(report)]:
        yield bullets(said)
    for title, drawn in pictures(report):
        yield f"<h2>{html.escape(title)}</h2>\n{drawn}"
    if report.pairs:
        yield table(PAIR_HEADS, pair_rows(report))
    if report.lines:
        yield "<h2>All of it</h2>"
        yield table(HEADS, rows_of(report))
