"""Points that are known before a sweep starts: those of a grid, and those in a file. A point has a value for each
option that it sets.
"""

import csv
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from launcher.apps.sweeps.folder import Point
from launcher.errors import BadInput
from launcher.spec.kinds.space import PlainWord
from launcher.spec.model import Dimension, Word
from launcher.spec.problems import shown
from launcher.spec.tree import Mark, Scalar

_MOST = 100_000


def override_of(key: str, value: Word) -> str:
    """Return the `--set` override, such as `run.args.lr=0.1`, that gives the option `key` this value."""
    return f"{key}={json.dumps(value) if isinstance(value, str | bool) else repr(value)}"


def applies(dimension: Dimension, point: Mapping[str, Word]) -> bool:
    """Return whether an option is to be chosen: its condition (`when`), if it has one, holds for `point`, the options
    chosen before.
    """
    return dimension.when is None or point.get(dimension.when[0]) == dimension.when[1]


def grid(space: Mapping[str, Dimension]) -> list[Point]:
    """Return every combination of the options' values as a point; the last option changes fastest.

    A point lacks an option whose condition it does not meet. Raise BadInput if there are more than 100,000 points.
    """
    found: list[Point] = [{}]
    for key, dimension in space.items():
        values = values_of(dimension)
        found = [
            {**point, key: value} if value is not None else point
            for point in found
            for value in (values if applies(dimension, point) else [None])
        ]
        if len(found) > _MOST:
            raise BadInput(f"sweep.space: a grid of more than {_MOST} points", "hint: search: random")
    return found


def values_of(dimension: Dimension) -> Sequence[Word]:
    """Return all values of an option; for a range, those from its lower bound in steps of `step` (1 if it is not
    given).
    """
    if dimension.values:
        return dimension.values
    step = dimension.step or 1
    count = int((dimension.high - dimension.low) / step + 1e-9) + 1
    found = (dimension.low + step * index for index in range(count))
    return [int(value) if dimension.whole else float(f"{value:.12g}") for value in found]


def space_of(points: Sequence[Point]) -> dict[str, Dimension]:
    """Return, by option, the dimension of a sweep that offers all values that the option has in the points."""
    found: dict[str, dict[tuple[type, Word], Word]] = {}
    for point in points:
        for key, value in point.items():
            found.setdefault(key, {})[type(value), value] = value
    return {key: Dimension(tuple(values.values())) for key, values in found.items()}


def points_in(file: Path) -> list[Point]:
    """Return the points in a CSV file, whose first line names the options.

    Raise BadInput if the file cannot be read or is invalid.
    """
    try:
        with file.open(newline="") as opened:
            lines = [*csv.reader(opened, skipinitialspace=True)]
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise BadInput(f"{file}: cannot be read: {error}") from error
    if len(lines) < 2:
        raise BadInput(f"{file}: expected a head with options and a line for each point, got {len(lines)} lines")
    return [*_points(file, lines[0], lines[1:])]


def _points(file: Path, keys: Sequence[str], lines: Sequence[Sequence[str]]) -> Iterator[Point]:
    """Yield a point for each of `lines`, the lines of a CSV file after the first, which has the options' names, `keys`.
    An empty value leaves its option out of the point.

    A blank line is skipped. Raise BadInput, which names `file` and the line, for a line with more or fewer values than
    `keys`, or with only empty ones.
    """
    for number, line in enumerate(lines, 2):
        if not line:
            continue
        if len(line) != len(keys):
            raise BadInput(f"{file}:{number}:1: expected {len(keys)} values, got {len(line)}")
        words = [PlainWord().convert(Scalar(text, True, Mark(number, 1))) if text else None for text in line]
        point = {key: word for key, word in zip(keys, words, strict=True) if word is not None}
        if not point:
            raise BadInput(f"{file}:{number}:1: expected a point, got {shown(','.join(line))}")
        yield point
