"""Draw curves as text: each character has two by four Braille dots; without colours, a letter for each curve. A curve
is a list of points (x, y); `names` are those of all curves, in their order.
"""

import math
from collections.abc import Mapping, Sequence
from itertools import pairwise

Curve = Sequence[tuple[float, float]]

_DOTS = ((0x01, 0x08), (0x02, 0x10), (0x04, 0x20), (0x40, 0x80))  # by row, then column, of a character
_BRAILLE = 0x2800
_LETTERS = "abcdefghijklmnopqrstuvwxyz"


def plot(curves: Mapping[str, Curve], width: int, height: int) -> list[list[tuple[str, str]]]:
    """Return the plot of the named curves, `width` characters wide and `height` lines high. Each line is a list of
    (text, name of the curve that it shows or "").

    Return an empty list if no curve has a finite point.
    """
    shown = {name: _finite(curve) for name, curve in curves.items()}
    points = [point for curve in shown.values() for point in curve]
    if not points:
        return []
    (left, right), (low, high) = _range([x for x, _ in points]), _range([y for _, y in points])
    labels = [f"{high - (high - low) * row / (height - 1):.4g}" for row in range(height)]
    margin = max(map(len, labels))
    cells = _cells(shown, (left, right, low, high), max(8, width - margin - 2), height)
    lines = []
    for row, label in enumerate(labels):
        shown_label = label if row in (0, height // 2, height - 1) else ""
        lines.append([(f"{shown_label:>{margin}} │", ""), *cells[row]])
    first, last = f"{left:.6g}", f"{right:.6g}"
    gap = " " * max(1, len(cells[0]) - len(first) - len(last))
    return [*lines, [(f"{'':>{margin}}  {first}{gap}{last}", "")]]


def letters(names: Sequence[str]) -> dict[str, str]:
    """Return {name: the letter that stands for the curve without colours}; curves beyond the last letter share."""
    return {name: _LETTERS[index % len(_LETTERS)] for index, name in enumerate(names)}


def in_letters(lines: Sequence[Sequence[tuple[str, str]]], names: Sequence[str]) -> list[str]:
    """Return the lines of a plot as texts, with each curve's letter in place of its dots. A line is a list of (text,
    name of the curve that it shows or "").
    """
    known = letters(names)
    return ["".join(known[name] if name else text for text, name in line).rstrip() for line in lines]


def _finite(curve: Curve) -> Curve:
    """Return the points of a curve whose coordinates are finite."""
    return [(x, y) for x, y in curve if math.isfinite(x) and math.isfinite(y)]


def _range(values: Sequence[float]) -> tuple[float, float]:
    """Return (lowest, highest) of the values, made to differ if they are equal."""
    low, high = min(values), max(values)
    return (low, high) if high > low else (low - 0.5, high + 0.5)


def _cells(
    curves: Mapping[str, Curve], frame: tuple[float, float, float, float], width: int, height: int
) -> list[list[tuple[str, str]]]:
    """Return the rows of the plot, `width` characters wide and `height` lines high: for each character (text, name of
    the curve or "").

    `frame` is (left, right, low, high) of the values that the plot spans.
    """
    left, right, low, high = frame

    def across(x: float) -> int:
        """Return the column of dots for the value `x`."""
        return round((x - left) / (right - left) * (2 * width - 1))

    def down(y: float) -> int:
        """Return the row of dots for the value `y`."""
        return round((high - y) / (high - low) * (4 * height - 1))

    dots: dict[tuple[int, int], tuple[int, str]] = {}
    for name, curve in curves.items():
        for x, y in _joined([(across(x), down(y)) for x, y in curve]):
            row, column = y // 4, x // 2
            before, whose = dots.get((row, column), (0, name))
            dots[row, column] = ((before if whose == name else 0) | _DOTS[y % 4][x % 2], name)
    return [[_cell(dots.get((row, column))) for column in range(width)] for row in range(height)]


def _cell(dot: tuple[int, str] | None) -> tuple[str, str]:
    """Return (the Braille character, the name of its curve) for one character of the plot, or (" ", "") for None.

    `dot` is (a bit for each of its dots, as in `_DOTS`, the name of the curve that they show); None: it has no dots.
    """
    return (" ", "") if dot is None else (chr(_BRAILLE + dot[0]), dot[1])


def _joined(points: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """Return the points, with dots on the line between each pair of neighbours."""
    found = list(points[:1])
    for (x0, y0), (x1, y1) in pairwise(points):
        steps = max(abs(x1 - x0), abs(y1 - y0), 1)
        found += [(x0 + round((x1 - x0) * i / steps), y0 + round((y1 - y0) * i / steps)) for i in range(1, steps + 1)]
    return found
