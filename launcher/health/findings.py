"""The findings of a check, one line for each thing checked with a hint if it is not well, and helpers for their
wording.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum

from launcher.errors import Exit

_MOST_NAMED = 4


class Level(StrEnum):
    """The severity of a finding."""

    OK = "ok"
    WARNING = "warning"  # runs work, but not all that is promised does
    PROBLEM = "problem"  # runs will not work


@dataclass(frozen=True, slots=True)
class Finding:
    """The result of checking one thing."""

    level: Level
    about: str
    text: str
    hint: str = ""  # what to do
    rows: tuple[tuple[str, ...], ...] = ()  # a table that shows it, head first
    unreachable: bool = False  # a problem because no host answers


def ok(about: str, text: str, rows: Iterable[tuple[str, ...]] = ()) -> Finding:
    """Return a finding that all is well."""
    return Finding(Level.OK, about, text, rows=tuple(rows))


def warning(about: str, text: str, hint: str) -> Finding:
    """Return a finding that may cause trouble, with a hint."""
    return Finding(Level.WARNING, about, text, hint)


def problem(about: str, text: str, hint: str, *, unreachable: bool = False) -> Finding:
    """Return a finding that prevents runs, with a hint; `unreachable` says that a host could not be reached."""
    return Finding(Level.PROBLEM, about, text, hint, unreachable=unreachable)


def exit_code(findings: Iterable[Finding]) -> Exit:
    """Return 0 if nothing prevents runs, 5 if a host cannot be reached, else 4."""
    problems = [finding for finding in findings if finding.level is Level.PROBLEM]
    if any(finding.unreachable for finding in problems):
        return Exit.UNREACHABLE
    return Exit.REFUSED if problems else Exit.OK


# Words


def ahead(seconds: float) -> str:
    """Return as text by how much a clock is ahead or behind."""
    return f"{abs(seconds):.1f} s {'ahead of' if seconds > 0 else 'behind'}"


def time_words(seconds: float | None) -> str:
    """Return a duration such as `none`, `90 s`, `30 min`, `36 h` or `7 days`."""
    if seconds is None:
        return "?"
    if math.isinf(seconds):
        return "none"
    for unit_s, unit, least in ((86400, "days", 2), (3600, "h", 2), (60, "min", 1)):
        if seconds >= least * unit_s and seconds % unit_s == 0:
            return f"{seconds / unit_s:.0f} {unit}"
    return f"{seconds / 3600:.1f} h" if seconds >= 2 * 3600 else f"{seconds:g} s"


def all_of(names: Sequence[str]) -> str:
    """Return the names as `a`, `a and b` or `a, b and c`."""
    *first, last = names
    return f"{', '.join(first)} and {last}" if first else last


def some(names: Sequence[str]) -> str:
    """Return the names as `a`, `a and b` or `a, b, c and 29 more`, or "" if there are none."""
    if len(names) > _MOST_NAMED:
        names = [*names[: _MOST_NAMED - 1], f"{len(names) - _MOST_NAMED + 1} more"]
    return all_of(names) if names else ""
