"""The table of runs."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from launcher.cli.graphs.tree import heading
from launcher.cli.looking.run_columns import USUAL, RunRow, cell, with_about
from launcher.cli.terminal import fitting, paint, state_colour
from launcher.run.layout import RunDir
from launcher.states import State
from launcher.status.derive import RunStatus

_NEWEST = 20
# What goes first where a terminal is too narrow; the others are cut.
_LESS = ("rate", "nodes", "restarts", "where", "duration", "age", "step")


@dataclass(frozen=True, slots=True)
class Table:
    """The lines of a table, and a note on what it leaves out."""

    lines: list[str]
    note: str = ""  # what it leaves out, for people


def table(
    rows: Sequence[RunRow], now: float, *, everything: bool, wanted: Sequence[str] = USUAL, width: int | None = None
) -> Table:
    """Return the table of active and newest runs, or of all, in the given order and no wider than `width`."""
    if not rows:
        return Table([], "no runs yet; `launch submit FILE` starts one, `launch spec init` writes a spec")
    shown = [row for index, row in enumerate(rows) if everything or index < _NEWEST or _active(row.status)]
    more = len(rows) - len(shown)
    shown, wanted = (
        ([*map(with_about, shown)], [*wanted, "name", "tags"]) if _any_labels(shown, wanted) else (shown, wanted)
    )
    lines = _fitting(shown, now, wanted, width)
    coloured = [paint(lines[0], "dim")]
    for line, row, above in zip(lines[1:], shown, [None, *shown], strict=False):
        if row.drawn and row.member is not None and (above is None or not _of_one_file(row, above)):
            coloured.append(heading(row.member.graph, row.member.state))
        coloured.append(paint(line, state_colour(row.status.state)))
    return Table(coloured, f"{more} more have ended; `launch status --all` shows them" if more else "")


def together(rows: Sequence[RunRow]) -> list[RunRow]:
    """Return the rows with those of one graph next to each other, as a tree, at the place of the first of them."""
    first = dict[str, int]()
    for index, row in enumerate(rows):
        first.setdefault(row.member.graph if row.member is not None else row.status.run, index)
    drawn = [replace(row, drawn=row.member is not None) for row in rows]
    return sorted(drawn, key=lambda row: _place_of(row, first))


def _place_of(row: RunRow, first: Mapping[str, int]) -> tuple[int, int]:
    """Return the sort key that keeps the steps of a graph together."""
    return (first[row.status.run], 0) if row.member is None else (first[row.member.graph], row.member.place)


def _of_one_file(row: RunRow, other: RunRow) -> bool:
    """Return whether both runs are steps of one graph."""
    return row.member is not None and other.member is not None and row.member.graph == other.member.graph


def _any_labels(rows: Sequence[RunRow], wanted: Sequence[str]) -> bool:
    """Return whether to show labels: any run has some, and no columns were chosen."""
    return wanted == USUAL and any(RunDir(Path(row.status.run_dir)).labels.exists() for row in rows)


def _fitting(rows: Sequence[RunRow], now: float, wanted: Sequence[str], width: int | None) -> list[str]:
    """Return the lines, leaving out less important columns that do not fit."""
    cells = {name: [name.upper(), *(cell(row, name, now) for row in rows)] for name in wanted}
    return fitting([*zip(*cells.values(), strict=True)], [name.upper() for name in _LESS], width)


def _active(status: RunStatus) -> bool:
    """Return whether the run is active."""
    return not status.state.ended and status.state is not State.UNKNOWN
