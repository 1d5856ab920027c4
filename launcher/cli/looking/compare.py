"""`launch compare`: show how runs differ in spec, arguments, environment, code and results; for a single run, how its
code differs from its commit.
"""

import argparse
import sys
from collections.abc import Iterator, Sequence

from launcher import api
from launcher.cli import figures
from launcher.cli.arguments import RUN_HELP, Arguments
from launcher.cli.looking.metrics import best_text, value_text
from launcher.cli.terminal import columns, cut, is_terminal, paint, safe, size, to_json
from launcher.errors import BadInput, Exit
from launcher.run.code.diffing import FileChange, shown
from launcher.status.compared import CodeComparison, Comparison, Table, Value
from launcher.status.series import Figure

EXAMPLES = """
  launch compare lr1 lr2             results side by side, and differences of arguments, spec,
                                     environment, packages and code
  launch compare lr1 lr2 --code      the code's diff to its last line
  launch compare lr1 lr2 --stat      only the names of files that differ
  launch compare lr1 lr2 lr3         each with the first
  launch compare lr1 lr2 --json      everything, for programs
  launch compare lr1                 its code that was not committed when it was submitted

Of a run that was resumed its newest attempt counts. Code is compared as it was frozen.
"""
_FEW_LINES = 60
_WIDEST = 60
_FEW_PACKAGES = 20
_FIRST = ("torch", "numpy", "nvidia-", "triton")
_COLOURS = {"+": "green", "-": "red", "@": "cyan"}


def declare(arguments: Arguments) -> None:
    """Declare the arguments of `launch compare`."""
    arguments.add_argument("run", metavar="RUN", nargs="+", help=f"{RUN_HELP}; one: with its commit")
    how = arguments.add_mutually_exclusive_group()
    how.add_argument("--code", action="store_true", help=f"all of the code's diff, not its first {_FEW_LINES} lines")
    how.add_argument("--stat", action="store_true", help="only the names of files that differ")
    arguments.prints_json(lambda: {"": Comparison, "one run": CodeComparison}, "all of it as JSON", among=how)


def run(options: argparse.Namespace) -> int:
    """Run `launch compare` and return its exit code."""
    runs = [*dict.fromkeys(map(api.run, options.run))]
    most = 0 if options.stat else None if options.code else _FEW_LINES
    if len(options.run) == 1:
        return _print_changes_since_commit(runs[0], most, as_json=options.json)
    if len(runs) < 2:
        hint = "hint: `launch status` shows all runs; `launch compare lr1 lr2`"
        raise BadInput(f"expected two runs or more to compare, got {runs[0].id} alone", hint)
    found = api.compare(runs)
    if options.json:
        print(to_json(found))
        return Exit.OK
    print("\n".join(_tables(found)))
    for lines in (_code(found, one, most) for one in found.code):
        print("\n".join(lines))
    return Exit.OK


def _print_changes_since_commit(run: api.Run, most: int | None, *, as_json: bool) -> int:
    """Print how a run's code differs from its commit, as JSON with `as_json`; return the exit code.

    `most` is the number of diff lines to print, None for all.
    """
    found, commit = api.uncommitted(run), run.about().commit
    if as_json:
        print(to_json(found))
    else:
        print("\n".join(_changes(safe(f"code: {commit[:10] or 'no commit'} → {run.id}"), found, most)))
    return Exit.OK


def _tables(found: Comparison) -> list[str]:
    """Return the lines of one table with all sections (results, arguments, spec, environment, packages), a column for
    each run. A section without a difference is only named in the last line.
    """
    sections = {
        "results": [*_results(found.results), *_metrics(found.metrics)],
        "arguments": [*_rows(found.arguments)],
        "spec": [*_rows(found.spec)],
        "environment": [*_rows(found.environment)],
        "packages": _packages(found.packages),
    }
    table = [["", *found.runs]]
    titles = {0}
    for title, rows in sections.items():
        if rows:
            titles.add(len(table))
            table += [[title, *[""] * len(found.runs)], *([f"  {name}", *cells] for name, *cells in rows)]
    widest = _widest(len(found.runs))
    lines = columns([[cut(safe(cell), widest) for cell in row] for row in table])
    same = [title for title, rows in sections.items() if not rows]
    told = [paint(line, "bold") if index in titles else line for index, line in enumerate(lines)]
    if found.unnoted:
        told.append(f"what was installed for {', '.join(found.unnoted)} is not known here")
        same = [title for title in same if title not in ("environment", "packages")]
    return [*told, *([f"no difference in {', '.join(same)}"] if same else [])]


def _widest(runs: int) -> int:
    """Return the width in characters of a cell with which the columns of `runs` runs fit on the terminal, at least 12;
    60 if there is no terminal.
    """
    return max(12, size(sys.stdout)[0] // (runs + 1) - 2) if is_terminal(sys.stdout) else _WIDEST


def _results(results: Table) -> Iterator[list[str]]:
    """Yield a table row for each result, such as state, step or duration, that any run has."""
    told = {name: values for name, values in results.items() if any(value is not None for value in values)}
    for name, values in told.items():
        match name:
            case "duration_s":
                yield ["duration", *("-" if one is None else figures.duration(float(one)) for one in values)]
            case "fingerprint":
                yield [name, *(_text(one)[:16] for one in values)]
            case _:
                yield [name.replace("_", " "), *map(_text, values)]


def _metrics(metrics: dict[str, tuple[Figure | None, ...]]) -> Iterator[list[str]]:
    """Yield the table rows of each metric: the name, then the last value in each run, and in a second row the best ones
    if any run has one. `metrics` has, by name, one Figure (last and best value) for each run; None: it has no such
    metric.
    """
    for name, of_runs in metrics.items():
        yield [name, *(value_text(one.last if one is not None else None) for one in of_runs)]
        if any(one is not None and one.best is not None for one in of_runs):
            yield [f"best {name}", *map(best_text, of_runs)]


def _rows(table: Table) -> Iterator[list[str]]:
    """Yield a table row for each entry of the table: its name, and its value in each run."""
    for name, values in table.items():
        yield [name, *map(_text, values)]


def _packages(table: Table) -> list[list[str]]:
    """Return the table rows of packages: first torch and others on which training depends, then by name. Only 20
    packages have a row; a last row counts the others, if there are any.
    """
    names = sorted(table, key=lambda name: (not name.startswith(_FIRST), name))
    rows = [*_rows({name: table[name] for name in names[:_FEW_PACKAGES]})]
    blank = [""] * max(map(len, table.values()), default=0)
    more = len(names) - _FEW_PACKAGES
    return [*rows, *([[f"and {more} more: --json", *blank]] if more > 0 else [])]


def _text(value: Value) -> str:
    """Return a value as the text of a cell, on one line; `-` for None."""
    return "-" if value is None else " ".join(str(value).split()) or '""'


def _code(found: Comparison, one: CodeComparison, most: int | None) -> list[str]:
    """Return the lines on how the code of a run, other than the first in `found`, differs from the first one's, with at
    most `most` lines of diff (None: all).
    """
    of_two = f"code: {found.runs[0]} → {one.run}"
    commits = dict(zip(found.runs, found.commits, strict=True))
    between = [
        commit[:10] + "+changes" * commit.endswith("+changes") for commit in (commits[found.runs[0]], commits[one.run])
    ]
    if all(between):
        of_two += safe(f" ({' → '.join(dict.fromkeys(between))})")
    return ["", *_changes(of_two, one, most)]


def _changes(title: str, one: CodeComparison, most: int | None) -> list[str]:
    """Return the title, the changed files, and at most `most` lines of their diff (None: all, 0: no diff).

    If the code is the same, or why cannot be told, a line says so instead.
    """
    if one.unknown:
        return [paint(title, "bold"), f"  {safe(one.unknown)}"]
    if not one.changes:
        return [f"{paint(title, 'bold')}: the same"]
    told = [f"  {safe(str(change))}" for change in one.changes]
    return [paint(title, "bold"), *told, *([] if most == 0 else _diff(one.changes, most))]


def _diff(changes: Sequence[FileChange], most: int | None) -> list[str]:
    """Return the diff of the changed files as lines after a blank one, or none if no file has a diff.

    With `most`, it is cut to that many lines, then lines say how many are left out and how to see all.
    """
    with_lines = [change for change in changes if change.diff]
    lines = shown(with_lines, most)
    cut_short = most is not None and len(lines) > most
    coloured = [paint(safe(line), _COLOURS.get(line[:1], "")) for line in lines]
    return ["", *coloured, *(["--code shows all of it"] if cut_short else [])] if lines else []
