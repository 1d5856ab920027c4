"""Format runs as HTML for notebooks; everything that comes from a run is escaped. Below, `now` is the Unix time up to
which the duration of an active run counts.
"""

import html
from collections.abc import Iterable, Mapping, Sequence
from datetime import timedelta

from launcher.states import State
from launcher.status.derive import RunStatus, duration_s, state_text
from launcher.status.text import plain

_COLOURS = {
    State.SUCCEEDED: "#2e7d32", State.RUNNING: "#0277bd", State.FAILED: "#c62828", State.LOST: "#c62828",
    State.CANCELLED: "#ef6c00", State.INTERRUPTED: "#ef6c00", State.REGROUPING: "#ef6c00", State.UNKNOWN: "#ef6c00",
}  # fmt: skip
_HEAD = ("run", "state", "step", "", "metrics", "restarts", "duration", "where")
_TAIL = 12


def run_html(status: RunStatus, now: float) -> str:
    """Return the HTML summary of one run."""
    failed = status.failure if status.state is State.FAILED else None
    said = failed.summary if failed is not None else status.message
    facts = {
        "step": " ".join(filter(None, (_text(_steps(status)), _bar(status)))),
        "metrics": _text(_metrics(status)),
        "to go": "" if status.eta_s is None else _text(_time(status.eta_s)),
        "checkpoint": "" if status.checkpoint is None else _text(f"step {status.checkpoint}"),
        "restarts": _text(str(status.restarts.total)),
        "ran for": _text(_duration(status, now)),
        "where": _text(f"{status.cluster}, {status.run_dir}"),
        "next": f"<code>{_text(status.next)}</code>" if status.next else "",
    }
    rows = "".join(f"<tr><th>{name}</th><td>{cell}</td></tr>" for name, cell in facts.items() if cell)
    head = f"<b>{_text(status.run)}</b> {_state(status)}{': ' + _text(said) if said else ''}"
    tail = "\n".join(failed.tail[-_TAIL:]) if failed is not None else ""
    log = f"<pre>{_text(tail, lines=True)}</pre>" if tail else ""
    return f"<div>{head}<table>{rows}</table>{log}</div>"


def table_html(statuses: Sequence[RunStatus], now: float) -> str:
    """Return an HTML table with a row for each run, newest first."""
    if not statuses:
        return "<div>no runs</div>"
    ordered = sorted(statuses, key=lambda status: (status.submitted_at, status.run), reverse=True)
    head = "".join(f"<th>{name}</th>" for name in _HEAD)
    return f"<table><tr>{head}</tr>{''.join(_row(status, now) for status in ordered)}</table>"


def _row(status: RunStatus, now: float) -> str:
    """Return the HTML table row of one run."""
    cells = (
        _text(status.run), _state(status), _text(_steps(status)), _bar(status), _text(_metrics(status)),
        _text(str(status.restarts.total)), _text(_duration(status, now)), _text(status.cluster),
    )  # fmt: skip
    return f"<tr>{_cells(cells)}</tr>"


def _cells(cells: Iterable[str]) -> str:
    """Return the texts, which are HTML, as cells of a table row."""
    return "".join(f"<td>{cell}</td>" for cell in cells)


def _text(text: str, *, lines: bool = False) -> str:
    """Return text escaped for HTML, without control characters; with `lines`, line breaks are kept."""
    return "\n".join(html.escape(plain(line)) for line in text.split("\n")) if lines else html.escape(plain(text))


def _state(status: RunStatus) -> str:
    """Return the run's state as HTML in the colour of that state."""
    colour = _COLOURS.get(status.state, "inherit")
    return f'<span style="color: {colour}">{_text(state_text(status))}</span>'


def _steps(status: RunStatus) -> str:
    """Return the newest step as text, with the total if it is known, such as `120/500`; "" before the first."""
    if status.step is None:
        return ""
    return str(status.step) if status.total_steps is None else f"{status.step}/{status.total_steps}"


def _bar(status: RunStatus) -> str:
    """Return a progress bar as HTML, or "" if the total number of steps is unknown."""
    if status.step is None or not status.total_steps:
        return ""
    return f'<progress value="{int(status.step)}" max="{int(status.total_steps)}"></progress>'


def _metrics(status: RunStatus) -> str:
    """Return the newest value of each metric as text."""
    values: Mapping[str, str] = {
        **{name: f"{value:.5g}" for name, value in status.metrics.items()},
        **{name: one.value for name, one in status.not_finite.items()},
    }
    return ", ".join(f"{name} {value}" for name, value in values.items())


def _duration(status: RunStatus, now: float) -> str:
    """Return the run's duration as text, or "" if it has not started or its end was not recorded."""
    seconds = duration_s(status, now)
    return "" if seconds is None else _time(seconds)


def _time(seconds: float) -> str:
    """Return seconds as a duration such as `0:03:07`."""
    return str(timedelta(seconds=int(max(0.0, seconds))))
