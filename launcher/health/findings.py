"""Findings of `launch doctor`: one for each thing that was checked, with a hint if something is to be done; and
functions for their texts.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum

from launcher.errors import Exit

_MOST_NAMED = 4


class Level(StrEnum):
    """The severity of a finding: ok; warning, if some feature will not work; problem, if runs will not work."""

    OK = "ok"
    WARNING = "warning"  # some feature will not work
    PROBLEM = "problem"  # runs will not work


@dataclass(frozen=True, slots=True)
class Finding:
    """The result of checking one thing: `about` names the thing, and `text` says what was found.

    `hint` says what to do, `rows` are a table (head first), and `unreachable` marks a problem that only means that a
    host did not answer.
    """

    level: Level  # ok, warning or problem
    about: str
    text: str
    hint: str = ""  # what to do
    rows: tuple[tuple[str, ...], ...] = ()  # a table to show, head first
    unreachable: bool = False  # a problem only because a host does not answer


def ok(about: str, text: str, rows: Iterable[tuple[str, ...]] = ()) -> Finding:
    """Return a finding of the level ok about the thing named `about`; `rows` are a table that goes with it, head
    first.
    """
    return Finding(Level.OK, about, text, rows=tuple(rows))


def warning(about: str, text: str, hint: str) -> Finding:
    """Return a finding, about the thing named `about`, that some feature will not work, with a hint."""
    return Finding(Level.WARNING, about, text, hint)


def problem(about: str, text: str, hint: str, *, unreachable: bool = False) -> Finding:
    """Return a finding of the level problem about the thing named `about`: runs will not work because of it. `hint`
    says what to do, and `unreachable` that the problem is only that a host did not answer.
    """
    return Finding(Level.PROBLEM, about, text, hint, unreachable=unreachable)


def exit_code(findings: Iterable[Finding]) -> Exit:
    """Return exit code 0 if no finding is a problem, 5 if a host could not be reached, else 4."""
    problems = [finding for finding in findings if finding.level is Level.PROBLEM]
    if any(finding.unreachable for finding in problems):
        return Exit.UNREACHABLE
    return Exit.REFUSED if problems else Exit.OK


# Words


def ahead(seconds: float) -> str:
    """Return as text, such as `1.5 s ahead of`, how a clock differs from another; `seconds` is negative if it is
    behind.
    """
    return f"{abs(seconds):.1f} s {'ahead of' if seconds > 0 else 'behind'}"


def time_words(seconds: float | None) -> str:
    """Return a duration as text, such as `90 s`, `30 min`, `36 h` or `7 days`; `none` for infinity and `?` for None."""
    if seconds is None:
        return "?"
    if math.isinf(seconds):
        return "none"
    for unit_s, unit, least in ((86400, "days", 2), (3600, "h", 2), (60, "min", 1)):
        if seconds >= least * unit_s and seconds % unit_s == 0:
            return f"{seconds / unit_s:.0f} {unit}"
    return f"{seconds / 3600:.1f} h" if seconds >= 2 * 3600 else f"{seconds:g} s"


def all_of(names: Sequence[str]) -> str:
    """Return all the names as text: `a`, `a and b` or `a, b and c`."""
    *first, last = names
    return f"{', '.join(first)} and {last}" if first else last


def some(names: Sequence[str]) -> str:
    """Return some of the names as text: `a`, `a and b` or `a, b, c and 29 more`; "" if there are none."""
    if len(names) > _MOST_NAMED:
        names = [*names[: _MOST_NAMED - 1], f"{len(names) - _MOST_NAMED + 1} more"]
    return all_of(names) if names else ""
