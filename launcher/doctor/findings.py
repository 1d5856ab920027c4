"""What a check-up of a cluster finds: a line for each thing that was looked at, and what to do where it is not well."""

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum

from launcher.errors import Exit


class Level(StrEnum):
    """How well a thing is."""

    OK = "ok"
    WARNING = "warning"  # runs work, but not all that is promised does
    PROBLEM = "problem"  # runs will not work


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was looked at."""

    level: Level
    about: str
    text: str
    hint: str = ""  # what to do
    rows: tuple[tuple[str, ...], ...] = ()  # a table that shows it, head first
    unreachable: bool = False  # a problem because nobody answers


def ok(about: str, text: str, rows: Iterable[tuple[str, ...]] = ()) -> Finding:
    return Finding(Level.OK, about, text, rows=tuple(rows))


def warning(about: str, text: str, hint: str) -> Finding:
    return Finding(Level.WARNING, about, text, hint)


def problem(about: str, text: str, hint: str, *, unreachable: bool = False) -> Finding:
    return Finding(Level.PROBLEM, about, text, hint, unreachable=unreachable)


def exit_code(findings: Iterable[Finding]) -> Exit:
    """0 where nothing keeps runs from working; 5 where nobody answers, else 4."""
    problems = [finding for finding in findings if finding.level is Level.PROBLEM]
    if any(finding.unreachable for finding in problems):
        return Exit.UNREACHABLE
    return Exit.REFUSED if problems else Exit.OK
