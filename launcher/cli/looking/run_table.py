"""The table of runs."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from launcher.cli.looking.run_columns import USUAL, RunRow, cell, with_about
from launcher.cli.terminal import fitting, paint, state_colour
from launcher.rundir.layout import RunDir
from launcher.status.derive import RunStatus
from launcher.words import State

_NEWEST = 20
# What goes first where a terminal is too narrow; the others are cut.
_LESS = ("rate", "nodes", "restarts", "where", "duration", "age", "step")


@dataclass(frozen=True, slots=True)
class Table:
    lines: list[str]
    note: str = ""  # what it leaves out, for people


def table(
    rows: Sequence[RunRow], now: float, *, everything: bool, wanted: Sequence[str] = USUAL, width: int | None = None
) -> Table:
    """The active runs and the newest, or all, in the order in which they come; no wider than `width`."""
    if not rows:
        return Table([], "no runs yet; `launch submit FILE` starts one, `launch init` writes a spec")
    shown = [row for index, row in enumerate(rows) if everything or index < _NEWEST or _active(row.status)]
    more = len(rows) - len(shown)
    shown, wanted = (
        ([*map(with_about, shown)], [*wanted, "name", "tags"]) if _any_labels(shown, wanted) else (shown, wanted)
    )
    lines = _fitting(shown, now, wanted, width)
    coloured = [paint(lines[0], "dim")]
    coloured += [paint(line, state_colour(row.status.state)) for line, row in zip(lines[1:], shown, strict=True)]
    return Table(coloured, f"{more} more have ended; `launch status --all` shows them" if more else "")


def _any_labels(rows: Sequence[RunRow], wanted: Sequence[str]) -> bool:
    return wanted == USUAL and any(RunDir(Path(row.status.run_dir)).labels.exists() for row in rows)


def _fitting(rows: Sequence[RunRow], now: float, wanted: Sequence[str], width: int | None) -> list[str]:
    cells = {name: [name.upper(), *(cell(row, name, now) for row in rows)] for name in wanted}
    return fitting([*zip(*cells.values(), strict=True)], [name.upper() for name in _LESS], width)


def _active(status: RunStatus) -> bool:
    return not status.state.ended and status.state is not State.UNKNOWN
