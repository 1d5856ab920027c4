"""The table of runs."""

from collections.abc import Sequence
from dataclasses import dataclass

from launcher.cli import figures
from launcher.cli.columns import columns
from launcher.cli.terminal import paint, safe, state_colour
from launcher.status.derive import RunStatus
from launcher.words import State

_NEWEST = 20
_HEAD = ("RUN", "STATE", "STEP", "RATE", "RESTARTS", "AGE", "DURATION", "NODES", "WHERE")


@dataclass(frozen=True, slots=True)
class Table:
    lines: list[str]
    note: str = ""  # what it leaves out, for people


def table(statuses: Sequence[RunStatus], now: float, *, everything: bool) -> Table:
    """The active runs and the newest, or all; `statuses` are newest first."""
    if not statuses:
        return Table([], "no runs yet; `launch submit FILE` starts one, `launch init` writes a spec")
    shown = [status for index, status in enumerate(statuses) if everything or index < _NEWEST or _active(status)]
    more = len(statuses) - len(shown)
    lines = columns([_HEAD, *(_row(status, now) for status in shown)])
    coloured = [paint(lines[0], "dim")]
    coloured += [paint(line, state_colour(status.state)) for line, status in zip(lines[1:], shown, strict=True)]
    return Table(coloured, f"{more} more have ended; `launch status --all` shows them" if more else "")


def _active(status: RunStatus) -> bool:
    return not status.state.ended and status.state is not State.UNKNOWN


def _row(status: RunStatus, now: float) -> tuple[str, ...]:
    return (
        safe(status.run),
        state_text(status),
        figures.steps(status.step, status.total_steps),
        figures.rate(status.rate),
        str(status.restarts.total),
        figures.duration(now - status.submitted_at),
        duration_text(status, now),
        str(len(status.nodes)) if status.nodes else "-",
        safe(status.cluster),
    )


def state_text(status: RunStatus) -> str:
    """`failed (user_error)`; a cause that says the same as the state is left out."""
    if status.cause is None or status.cause.value == status.state.value:
        return str(status.state)
    return f"{status.state} ({status.cause})"


def duration_text(status: RunStatus, now: float) -> str:
    """From the first start to the end, or to now."""
    if status.started_at is None:
        return "-"
    if status.ended_at is None and (status.state.ended or status.state is State.UNKNOWN):
        return "-"  # nobody saw its end
    end = status.ended_at if status.ended_at is not None else now
    return figures.duration(end - status.started_at)
