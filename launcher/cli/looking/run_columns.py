"""The columns of the table of runs, and how runs are sorted by them. `now` is the Unix time up to which durations of
active runs count.
"""

import difflib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from launcher.cli import figures
from launcher.cli.graphs.members import GraphMember
from launcher.cli.terminal import safe
from launcher.errors import BadInput
from launcher.run.layout import RunDir
from launcher.status.derive import RunStatus, duration_s, state_text

if TYPE_CHECKING:
    from launcher.status.about import About


@dataclass(frozen=True, slots=True)
class RunRow:
    """A row in the table of runs. `about` is read only if a column needs it, `member` is the run's position in a graph,
    and `drawn` tells whether it is shown below the graph's name.
    """

    status: RunStatus
    about: "About | None" = None  # arguments, description, labels; read only if a column or a selection needs them
    member: GraphMember | None = None  # its position, if it is a step of a graph
    drawn: bool = False  # shown below the graph's name


def duration_text(status: RunStatus, now: float) -> str:
    """Return the time from a run's first start to its end or to `now` as text; "-" if it is not known."""
    seconds = duration_s(status, now)
    return "-" if seconds is None else figures.duration(seconds)


USUAL = ("run", "state", "step", "rate", "restarts", "age", "duration", "nodes", "where")
_SHOWN: dict[str, Callable[[RunStatus, float], str]] = {
    "run": lambda status, _: safe(status.run),
    "state": lambda status, _: state_text(status),
    "step": lambda status, _: figures.steps(status.step, status.total_steps),
    "rate": lambda status, _: figures.rate(status.rate),
    "restarts": lambda status, _: str(status.restarts.total),
    "age": lambda status, now: figures.duration(now - status.submitted_at),
    "duration": duration_text,
    "nodes": lambda status, _: str(len(status.nodes)) if status.nodes else "-",
    "where": lambda status, _: safe(status.cluster),
    "attempt": lambda status, _: str(status.attempt),
    "checkpoint": lambda status, _: "-" if status.checkpoint is None else str(status.checkpoint),
    "job": lambda status, _: safe(status.job or "-"),
    "message": lambda status, _: safe(status.message) or "-",
}
_ORDER: dict[str, Callable[[RunStatus, float], float | None]] = {
    "step": lambda status, _: status.step,
    "rate": lambda status, _: status.rate,
    "restarts": lambda status, _: status.restarts.total,
    "age": lambda status, now: now - status.submitted_at,
    "duration": duration_s,
    "nodes": lambda status, _: len(status.nodes),
    "attempt": lambda status, _: status.attempt,
    "checkpoint": lambda status, _: status.checkpoint,
}
_SAID: "dict[str, Callable[[About], str]]" = {
    "name": lambda about: about.called,
    "args": lambda about: " ".join(about.args),
    "commit": lambda about: about.commit[:10] + ("+changes" if about.dirty else ""),
    "description": lambda about: " ".join(about.description.split()),
    "tags": lambda about: ",".join(about.tags),
    "note": lambda about: " ".join(about.note.split()),
}


OURS = tuple(dict.fromkeys((*_SHOWN, *_SAID)))
MORE = tuple(name for name in OURS if name not in USUAL)
_MISSING = 2


def with_about(row: RunRow) -> RunRow:
    """Return the row with `about` filled in: arguments, description, and the labels that users gave the run."""
    from launcher.status.about import about  # late: the usual table does without

    return replace(row, about=about(RunDir(Path(row.status.run_dir)), row.status.attempt))


def cell(row: RunRow, column: str, now: float) -> str:
    """Return the text of a cell, or `-` if it has none; durations of active runs count up to the Unix time `now`.

    A column that the table does not define is the name of an argument of the script or of a metric.
    """
    if column == "run" and row.drawn and row.member is not None:
        return row.member.branch + safe(row.status.run)
    if column in _SHOWN:
        return _SHOWN[column](row.status, now)
    if column in _SAID:
        return safe(_SAID[column](row.about)) if row.about is not None and _SAID[column](row.about) else "-"
    value = _measured(row, column)
    return "-" if value is None else safe(value) if isinstance(value, str) else f"{value:.5g}"


def refuse_unknown(rows: list[RunRow], columns: Iterable[str]) -> None:
    """Raise BadInput for columns that are neither defined, nor a metric or an argument of any run.

    While a run is active that has not reported metrics yet, only names that resemble a known one are refused.
    """
    missing = [name for name in columns if name not in OURS and all(_measured(row, name) is None for row in rows)]
    if not missing or not rows:
        return
    metrics = [*dict.fromkeys(safe(name) for row in rows for name in row.status.metrics)]
    arguments = [*dict.fromkeys(name for row in rows for name in _argument_names(row))]
    near = difflib.get_close_matches(missing[0][:100], [*OURS, *metrics, *arguments], n=1)
    if not near and any(not row.status.state.ended and not row.status.metrics for row in rows):
        return
    known = f"metrics are {', '.join(metrics)}" if metrics else "no run has reported a metric"
    hint = f"did you mean {near[0]}?" if near else f"{known}; `launch status --help` names the other columns"
    named = ", ".join(map(safe, missing))
    raise BadInput(f"no run has {named}, as a metric or as an argument of its script", f"hint: {hint}")


def in_order(rows: Sequence[RunRow], column: str, now: float, *, reverse: bool = False) -> list[RunRow]:
    """Return the rows sorted by `column`, in descending order with `reverse`.

    Rows without a value come last in both.
    """
    keyed = [(_sort_key(row, column, now), row) for row in rows]
    valued = [pair for pair in keyed if pair[0][0] != _MISSING]
    valued.sort(key=lambda pair: pair[0], reverse=reverse)
    return [row for _, row in (*valued, *(pair for pair in keyed if pair[0][0] == _MISSING))]


def _sort_key(row: RunRow, column: str, now: float) -> tuple[int, float, str]:
    """Return a sort key of the row's value in a column: numbers first, then texts, then rows without a value."""
    value = _ORDER[column](row.status, now) if column in _ORDER else _measured(row, column)
    if value is None and (column in _SHOWN or column in _SAID) and column not in _ORDER:
        value = cell(row, column, now)
    try:
        number = float(value) if value is not None else None
    except ValueError:
        number = None
    if number is not None and number == number:  # noqa: PLR0124 - a loss that is no number any more comes last
        return 0, number, ""
    return (_MISSING, 0.0, "") if value in (None, "-") else (1, 0.0, str(value))


def _measured(row: RunRow, column: str) -> float | str | None:
    """Return what a column that the user named shows of a run: the newest value of the metric `column`, else the value
    of the script's argument of that name, or None if the run has neither.
    """
    from launcher.status.about import argument  # late: the usual columns do without

    if column in row.status.metrics:
        return row.status.metrics[column]
    return argument(row.about.args, column) if row.about is not None else None


def _argument_names(row: RunRow) -> Iterator[str]:
    """Yield the names of the options that the run's script was given, without dashes."""
    from launcher.status.about import options_in  # late: the usual columns do without

    options = options_in(row.about.args) if row.about is not None else {}
    return (safe(name.lstrip("-")) for name in options if name.startswith("-"))
