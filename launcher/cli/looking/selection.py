"""Select the runs that a command is about: by name, pattern, state, age or tag."""

import argparse
import re
import time
from collections.abc import Sequence
from fnmatch import fnmatchcase

from launcher import api
from launcher.cli.arguments import Arguments
from launcher.cli.graphs.members import runs_called
from launcher.cli.looking.run_columns import RunRow, with_about
from launcher.errors import NoSuchRun
from launcher.run.layout import RunDir
from launcher.states import State

_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400, "w": 7 * 86400}
_ENDED = tuple(state for state in State if state.ended)
_SETS = {"ended": _ENDED, "active": tuple(state for state in State if not state.ended)}
STATES = (*map(str, State), *_SETS)  # what --state takes


def declare_selection(arguments: Arguments) -> None:
    """Declare the options that select runs by state, age, tag and name."""
    arguments.add_argument(
        "--name", metavar="GLOB", help="runs whose id, job or name matches this pattern, such as 'lr*' (quoted)"
    )
    arguments.add_argument(
        "--state", metavar="STATE", type=_states, action="append", default=[],
        help="runs in this state, such as failed; active and ended stand for several states; may be repeated",
    )  # fmt: skip
    arguments.add_argument(
        "--tag", metavar="TAG", action="append", default=[], help="runs with this tag; may be repeated"
    )


def chosen(refs: Sequence[str], *, last_first: bool = False) -> list[api.Run]:
    """Return the runs that `refs` name, each once; raise NoSuchRun for an unknown one.

    A graph stands for all its runs; with `last_first`, each of them comes before those that it needs.
    """
    step = -1 if last_first else 1
    return list({one.id: one for ref in refs for one in runs_called(ref)[::step]}.values())


def runs_like(refs: Sequence[str], *, last_first: bool = False) -> list[api.Run]:
    """Return the runs that `refs` name, or whose id or name matches a pattern in `refs`.

    Raise NoSuchRun if one of `refs` finds no run. With `last_first`, a graph's runs come before those that they need.
    """
    named = [(ref, _like(ref) if any(sign in ref for sign in "*?[") else [ref]) for ref in refs]
    for ref, found in named:
        if not found:
            raise NoSuchRun(f"{ref[:100]!r}: no such runs", "hint: `launch status --all` shows all")
    return chosen([name for _, found in named for name in found], last_first=last_first)


def existing_runs() -> list[api.Run]:
    """Return all runs of this user whose folder exists."""
    return [one for one in api.runs() if one.path.is_dir()]


def runs_named(globs: Sequence[str]) -> list[api.Run]:
    """Return the runs whose id, job name or given name matches one of `globs`; raise NoSuchRun if none does."""
    there = existing_runs()
    rows = [with_about(RunRow(status)) for status in api.statuses(there)]
    wanted = {row.status.run for row in rows if any(_named(row, glob) for glob in globs)}
    if not wanted:
        raise NoSuchRun(f"{', '.join(globs)[:100]!r}: no such runs", "hint: `launch status --all` shows all")
    return [one for one in there if one.id in wanted]


def _like(pattern: str) -> list[str]:
    """Return the ids of runs whose id or given name matches the glob `pattern`, such as `lr-*`."""
    from launcher.status.about import labels  # late: of no use where no pattern is given

    there = existing_runs()
    called = {one.id: labels(RunDir(one.path)).name for one in there}
    return [str(one.id) for one in there if fnmatchcase(one.id, pattern) or fnmatchcase(called[one.id], pattern)]


def selects(options: argparse.Namespace) -> bool:
    """Return whether an option that selects runs, by name, state or tag, is given."""
    return bool(options.name or options.state or options.tag)


def selected(rows: Sequence[RunRow], options: argparse.Namespace) -> list[RunRow]:
    """Return the rows of the runs that match the options for state, name and tag, all of them at once; an option that
    was not given matches every run.
    """
    states = {state for some in options.state for state in some}
    return [
        row
        for row in rows
        if (not states or row.status.state in states) and _named(row, options.name) and _tagged(row, options.tag)
    ]


def _named(row: RunRow, glob: str | None) -> bool:
    """Return whether the run's id, job name or given name matches the glob; None matches every run."""
    called = row.about.called if row.about is not None else ""
    return glob is None or any(fnmatchcase(name, glob) for name in (row.status.run, row.status.name, called))


def _tagged(row: RunRow, tags: Sequence[str]) -> bool:
    """Return whether the run has all of the tags."""
    return not tags or (row.about is not None and set(tags) <= {*row.about.tags})


def _states(text: str) -> tuple[State, ...]:
    """Return the states in an option's text, such as `running,failed`, or a word such as `ended` for several states;
    raise ArgumentTypeError for any other text.
    """
    found = [_SETS.get(word, (word,)) for word in text.split(",")]
    try:
        return tuple(State(state) for states in found for state in states)
    except ValueError:
        known = ", ".join(STATES)
        raise argparse.ArgumentTypeError(f"expected one of {known}, got {text!r}") from None


def age(text: str) -> float:
    """Return the seconds of an age such as `90s`, `2d` or `1w`, or since a date such as 2026-01-31.

    Raise ArgumentTypeError for any other text.
    """
    found = re.fullmatch(r"(\d{1,9})([smhdw])", text)
    if found:
        return float(int(found[1]) * _UNITS[found[2]])
    try:
        return time.time() - time.mktime(time.strptime(text, "%Y-%m-%d"))
    except (ValueError, OverflowError):
        raise argparse.ArgumentTypeError(f"expected an age such as 2d, 12h or 2026-01-31, got {text!r}") from None
