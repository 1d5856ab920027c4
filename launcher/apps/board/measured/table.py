"""A table of numbers in memory: a row per step, and a column of eight bytes a step for each metric. Missing values are
MISSING.
"""

import sys
from array import array
from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence

MISSING = -sys.float_info.max  # of a step at which this metric was not measured
NO_TIME = 0.0
MOST_STEP = sys.maxsize  # that a row can be of


class StepTable:
    """Rows of numbers in the order of their steps, each step once. `at` has the time of each row, `columns` the values
    of each metric, and `ranks` which rank reported each value.
    """

    def __init__(self) -> None:
        self.steps: array[int] = array("q")
        self.at: array[float] = array("d")
        self.columns: dict[str, array[float]] = {}
        self.ranks: dict[str, array[int]] = {}  # beside each value: who said it

    @property
    def last(self) -> int:
        """The last step, or -1 for an empty table."""
        return self.steps[-1] if self.steps else -1

    def cut(self, first: int, before: int | None = None) -> bool:
        """Remove the rows from step `first` on, up to but without step `before` if given.

        Return whether any row was removed.
        """
        start = bisect_left(self.steps, first)
        end = len(self.steps) if before is None else bisect_left(self.steps, before)
        if start >= end:
            return False
        del self.steps[start:end], self.at[start:end]
        for name, column in self.columns.items():
            del column[start:end], self.ranks[name][start:end]
        return True

    def extend(
        self, steps: Sequence[int], at: Sequence[float], columns: Mapping[str, "array[float]"], rank: int = 0
    ) -> None:
        """Append rows that one rank reported.

        `at` has the Unix time of each step, and `columns` the values of each metric by its name. All are as long as
        `steps`, which must come after the table's last step.
        """
        for name in columns:
            self._make(name)
        self.steps.extend(steps)
        self.at.extend(at)
        for name, column in self.columns.items():
            column.extend(columns.get(name) or array("d", (MISSING,)) * len(steps))
            self.ranks[name].extend(array("H", (rank,)) * len(steps))

    def row(self, step: int, at: float) -> int:
        """Return the index of the step's row; if there is none, insert an empty row with the Unix time `at`."""
        place = bisect_left(self.steps, step)
        if place < len(self.steps) and self.steps[place] == step:
            return place
        self.steps.insert(place, step)
        self.at.insert(place, at)
        for name, column in self.columns.items():
            column.insert(place, MISSING)
            self.ranks[name].insert(place, 0)
        return place

    def put(self, place: int, name: str, value: float, rank: int = 0) -> None:
        """Set a metric's value in row `place`, unless a lower rank has reported it."""
        self._make(name)
        if self.columns[name][place] == MISSING or rank <= self.ranks[name][place]:
            self.columns[name][place], self.ranks[name][place] = value, rank

    def _make(self, name: str) -> None:
        """Add an empty column for a metric, if it has none."""
        if name not in self.columns:
            self.columns[name] = array("d", (MISSING,)) * len(self.steps)
            self.ranks[name] = array("H", (0,)) * len(self.steps)

    def points(self, name: str) -> Iterator[tuple[int, float, float]]:
        """Yield (step, time, value) for each step that has a value of the metric."""
        rows = zip(self.steps, self.at, self.columns[name], strict=True)
        return (row for row in rows if row[2] != MISSING)

    def newest(self, name: str) -> tuple[int, float] | None:
        """Return (the last step with a value of the metric, that value), or None if there is none."""
        column = self.columns.get(name, ())
        place = next((place for place in range(len(column) - 1, -1, -1) if column[place] != MISSING), None)
        return (self.steps[place], column[place]) if place is not None else None

    def time_of(self, step: int) -> float:
        """Return the Unix time of a step, or NO_TIME (0) if it is not known."""
        place = bisect_left(self.steps, step)
        return self.at[place] if place < len(self.steps) and self.steps[place] == step else NO_TIME
