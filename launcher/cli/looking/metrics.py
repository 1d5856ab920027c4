"""`launch metrics`: show the metrics of runs by step: as a table, as data, as curves. `measured` has the rows of each
run, or of a role of it, by name; rows are {step: {metric: value}}.
"""

import argparse
import csv
import gc
import math
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec

from launcher import api
from launcher.cli import figures
from launcher.cli.arguments import RUN_HELP, Arguments
from launcher.cli.looking.plot import Curve, in_letters, letters, plot
from launcher.cli.looking.role_option import parts_of, takes_role
from launcher.cli.looking.selection import runs_like, runs_named
from launcher.cli.shipped import shipped
from launcher.cli.terminal import fitting, in_colour, paint, safe, size, to_json, width_of
from launcher.errors import BadInput, Exit
from launcher.node.ranks.reports.metrics_file import KEPT_WHOLE
from launcher.run.layout import RunDir
from launcher.status.series import AT, STEP, Figure, Rows, better, figures_of, names_in, thinned

EXAMPLES = """
  launch metrics last                          about twenty rows of all that it measured
  launch metrics last --metric loss --all      every step
  launch metrics lr1 lr2                       the last and the best value of each run
  launch metrics last --role actors            what this role of a run of several programs has measured
  launch metrics --name 'lr*'                  of all runs whose id, job or name is like this
  launch metrics lr1 lr2 --plot --metric loss  their curves, here
  launch metrics last --csv > run.csv          or --json; --png FILE needs the extra `plot`
  launch metrics --openmetrics                 states, steps, rates, restarts and loads as Prometheus reads them
  launch metrics --grafana > trainings.json    a dashboard that shows them in Grafana

Any number that a script reports beside its step is a metric; the trainer's are there, too. Of steps that were done
again after a restart the last time counts. `best` is shown for names that say which way is better: loss, accuracy, ...
"""
_ROWS = 20
_MOST_HEIGHT = 20
_COLOURS = ("cyan", "yellow", "green", "magenta", "blue", "red")


class RunRows(msgspec.Struct, frozen=True):
    """The metrics of a run, or of a role of it, as `--json` prints them: a row per step with `step`, `at` (Unix time)
    and each metric by name. NaN and infinities are text.
    """

    run: str  # its name in `measured`
    rows: Sequence[dict[str, float | str]]


def declare(arguments: Arguments) -> None:
    """Declare the arguments of `launch metrics`."""
    arguments.add_argument("run", metavar="RUN", nargs="*", help=f"{RUN_HELP}; or a pattern such as 'lr-*'")
    arguments.add_argument(
        "--metric", metavar="NAME", action="append", help="this metric; may be repeated (default: all)"
    )
    arguments.add_argument(
        "--name", metavar="GLOB", action="append", help="runs whose id, job or name matches this pattern, such as 'lr*'"
    )
    takes_role(arguments)
    arguments.add_argument("--all", action="store_true", help="every step, instead of about twenty rows")
    how = arguments.add_mutually_exclusive_group()
    how.add_argument("--csv", action="store_true", help="as CSV: run, step, time, and a column for each metric")
    arguments.prints_json(lambda: {"": list[RunRows]}, "all of it as JSON", among=how)
    how.add_argument("--plot", action="store_true", help="curves in the terminal, one for each run and metric")
    how.add_argument("--png", metavar="FILE", type=Path, help="write the curves as a picture")
    how.add_argument(
        "--openmetrics",
        action="store_true",
        help="states and figures of these or all runs, in the OpenMetrics format for Prometheus",
    )
    how.add_argument("--grafana", action="store_true", help="print a dashboard of these figures for Grafana")


def run(options: argparse.Namespace) -> int:
    """Run `launch metrics` and return its exit code."""
    if options.openmetrics:
        sys.stdout.write(_for_prometheus(options.run))
        return Exit.OK
    if options.grafana:
        sys.stdout.write((shipped("templates") / "grafana.json").read_text(encoding="utf-8"))
        return Exit.OK
    if options.run and options.name:
        print("--name of a metric is --metric now", file=sys.stderr)
        options.metric, options.name = [*(options.metric or ()), *options.name], None
    if not (options.run or options.name):
        raise BadInput("of which run?", "hint: launch metrics last; --openmetrics tells of all")
    gc.disable()  # of a million rows none is part of a circle, and looking for that takes as long as reading them
    runs = runs_like(options.run) if options.run else runs_named(options.name)
    parts = [part for one in runs for part in parts_of(one, options.role)]
    reported = {part.name: part.run.metrics() for part in parts}
    measured = {run_id: _chosen(rows, options.metric) for run_id, rows in reported.items()}
    if not any(measured.values()):
        wanted = f" called {' or '.join(options.metric)}" if options.metric else ""
        there = ", ".join(map(safe, _names(reported))) or "none"
        print(f"no metrics{wanted}: {', '.join(measured)} has reported {there}", file=sys.stderr)
    elif options.json:
        print(to_json([RunRows(name, [*_plain(rows)]) for name, rows in measured.items()]))
    elif options.csv:
        _write_csv(measured)
    elif options.plot:
        print("\n".join(_curves(measured, options.metric or _quality_metric(measured))))
    elif options.png is not None:
        _draw(measured, options.metric or _quality_metric(measured), options.png)
    elif len(measured) > 1:
        print("\n".join(_summaries(measured)))
    else:
        _show(*measured.values(), whole=options.all)
    for part in parts:
        _tell_of_thinning(part)
    return Exit.OK


def _tell_of_thinning(one: api.Part) -> None:
    """Print on stderr how many of the reports of a run or role were stored, unless all were."""
    counts = thinned(RunDir(one.run.path))
    if counts is not None:
        kept, all_of_them = counts
        pace = f"after the first {KEPT_WHOLE:,} of a rank, at most 20 a second"
        print(
            f"{one.name}: {kept:,} of {all_of_them:,} reports kept ({pace}); last and best are exact", file=sys.stderr
        )


def _chosen(rows: Rows, names: Sequence[str] | None) -> Rows:
    """Return the rows with only the metrics in `names`, or with all if it is None; steps without any are left out."""
    if names is None:
        return rows
    kept = {AT, *names}
    chosen = {step: {name: value for name, value in row.items() if name in kept} for step, row in rows.items()}
    return {step: row for step, row in chosen.items() if row.keys() - {AT}}


def _names(measured: dict[str, Rows]) -> list[str]:
    """Return the metric names of all runs, in the order in which they appeared."""
    return [*dict.fromkeys(name for rows in measured.values() for name in names_in(rows))]


def _for_prometheus(named: Sequence[str]) -> str:
    """Return the OpenMetrics text for Prometheus about the named runs, or all if none are named."""
    from launcher.status.life import read_life  # late: only for this
    from launcher.status.openmetrics import exposition, exposition_now  # late: only for this

    now = time.time()
    if not named:
        return exposition_now(api.statuses(api.runs(), api.WATCH_S), now)
    chosen = [*{one.id: one for one in map(api.run, named)}.values()]
    statuses = api.statuses(chosen, api.WATCH_S)
    return exposition(statuses, statuses, {one.run: read_life(one, now) for one in statuses})


# -- as text


def _show(rows: Rows, *, whole: bool) -> None:
    """Print the table of one run: with `whole` a row for every step, else about twenty rows, one for every n-th step
    with the newest value of each metric up to that step.
    """
    names = names_in(rows)
    began = next((row[AT] for row in rows.values() if AT in row), None)
    shown = rows if whole else _thinned(rows)
    table = [("STEP", "TIME", *names)]
    for step, row in shown.items():
        at = row.get(AT)
        time = "-" if at is None or began is None else figures.duration(at - began)
        table.append((str(step), time, *(value_text(row.get(name)) for name in names)))
    print("\n".join(_fitted(table)))
    if len(shown) < len(rows):
        text = f"{len(shown)} rows of {len(rows):,} steps, with the newest value of each: --all shows every step"
        print(text, file=sys.stderr)


def _thinned(rows: Rows) -> Rows:
    """Return about twenty rows: every n-th step, with the newest value of each metric up to that step."""
    steps = [*rows]
    every = math.ceil(len(steps) / _ROWS)
    found: Rows = {}
    for first in range(0, len(steps), every):
        part = steps[first : first + every]
        found[part[-1]] = {name: value for step in part for name, value in rows[step].items()}
    return found


def _summaries(measured: dict[str, Rows]) -> list[str]:
    """Return the lines of a table with a row per run: its newest step, the last value of each metric and, if the
    metric's name tells whether small or large values are better (as `loss` does), its best value and the step of that.

    `measured` has the rows of each run. Metrics for which the terminal has no room are left out.
    """
    found = {name: {figure.name: figure for figure in figures_of(rows)} for name, rows in measured.items()}
    names = [*dict.fromkeys(name for of_run in found.values() for name in of_run)]
    head = ["RUN", "STEP"]
    for name in names:
        head += [name, *([f"best {name}"] if better(name) else [])]
    table = [head]
    for run_id, of_run in found.items():
        row = [run_id, str(max(measured[run_id], default="-"))]
        for name in names:
            figure = of_run.get(name)
            row += [value_text(figure.last if figure else None), *([best_text(figure)] if better(name) else [])]
        table.append(row)
    return _fitted(table)


def _fitted(table: Sequence[Sequence[str]]) -> list[str]:
    """Return the lines of a table whose first row has the heads and whose first two columns are no metrics. If the
    terminal has no room for all metrics, leave out the last ones, and print on stderr how many.
    """
    cells = [[safe(cell) for cell in row] for row in table]
    fixed, names = cells[0][:2], cells[0][2:]
    head, *lines = fitting(cells, [*names[:0:-1], *fixed[1:]], width_of(sys.stdout))
    if left := sum(f" {name} " not in f"{head} " for name in names):
        print(f"no room for {figures.count(left, 'column')}: --metric shows one, --csv all", file=sys.stderr)
    return [paint(head, "dim"), *lines]


def value_text(value: float | None) -> str:
    """Return a metric's value as text with five significant digits, or `-` for None."""
    return "-" if value is None else f"{value:.5g}"


def best_text(figure: Figure | None) -> str:
    """Return the best value and its step, such as `0.2931 at 120`, or `-` if there is none."""
    return "-" if figure is None or figure.best is None else f"{figure.best:.5g} at {figure.best_step}"


# -- as data


def _plain(rows: Rows) -> Iterator[dict[str, float | str]]:
    """Yield a dict for each row: `step`, and what the row has by name, with NaN and infinities as text, because JSON
    has neither.
    """
    for step, row in rows.items():
        yield {STEP: step} | {name: value if math.isfinite(value) else repr(value) for name, value in row.items()}


def _write_csv(measured: dict[str, Rows]) -> None:
    """Print the rows of all runs as CSV on stdout: run, step, time, and a column for each metric of any run, empty
    where a step has no value.
    """
    names = _names(measured)
    out = csv.writer(sys.stdout, lineterminator="\n")
    out.writerow(["run", STEP, AT, *names])
    for run_id, rows in measured.items():
        out.writerows([run_id, step, *(row.get(name, "") for name in (AT, *names))] for step, row in rows.items())


# -- as curves


def _curves(measured: dict[str, Rows], names: Sequence[str]) -> list[str]:
    """Return the lines of a plot for each of the metrics in `names`, with a curve per run."""
    width, height = size(sys.stdout)
    found = []
    for name in names:
        curves = _curves_of(measured, name)
        lines = plot(curves, width, min(_MOST_HEIGHT, max(6, height - 4)))
        found += [safe(name), *(_painted(lines, curves) if lines else ["no finite value"])]
    return found


def _quality_metric(measured: dict[str, Rows]) -> list[str]:
    """Return a list of one metric: the first whose name tells whether less or more of it is better, such as a loss, or
    else the first of all. Return an empty list if there are no metrics.
    """
    names = _names(measured)
    return ([name for name in names if better(name)] or names)[:1]


def _curves_of(measured: dict[str, Rows], name: str) -> dict[str, Curve]:
    """Return {run: its points (step, value)} for the metric `name`; a run without it has no points."""
    return {
        run_id: [(step, row[name]) for step, row in rows.items() if name in row] for run_id, rows in measured.items()
    }


def _painted(lines: list[list[tuple[str, str]]], curves: dict[str, Curve]) -> list[str]:
    """Return the lines of a plot as text, with a legend below that names the curves: in colours, or on a stream without
    them with a letter for each curve. A single curve has no colour and no legend. Each line is a list of (text, name of
    the curve).
    """
    names = [*curves]
    if len(names) == 1:
        return ["".join(text for text, _ in line).rstrip() for line in lines]
    if not in_colour(sys.stdout):
        legend = "  ".join(f"{letter} {name}" for name, letter in letters(names).items())
        return [*in_letters(lines, names), legend]
    colours = {name: _COLOURS[index % len(_COLOURS)] for index, name in enumerate(names)}
    drawn = ["".join(paint(text, colours[name]) if name else text for text, name in line) for line in lines]
    return [*drawn, "  ".join(paint(name, colours[name]) for name in names)]


def _draw(measured: dict[str, Rows], names: Sequence[str], file: Path) -> None:
    """Draw the metrics in `names` into a picture file with matplotlib: one plot below the other, each with a curve per
    run.

    Raise BadInput if matplotlib is not installed or the end of the file's name is that of no kind of picture, and
    OSError if the file cannot be written.
    """
    try:
        from matplotlib.figure import Figure as Picture  # late: an optional package, and slow to import
    except ImportError as error:
        from trainer.extras import install_hint  # late: after a failure alone

        hint = f"{install_hint('plot')}; --plot draws in the terminal without it"
        raise BadInput(f"--png needs matplotlib: {error}", hint) from error
    picture = Picture(figsize=(8, 4.5 * len(names)), layout="constrained")
    for place, name in enumerate(names):
        axes = picture.add_subplot(len(names), 1, place + 1, xlabel="step", ylabel=name)
        for run_id, curve in _curves_of(measured, name).items():
            axes.plot([x for x, _ in curve], [y for _, y in curve], label=run_id)
        axes.legend()
    try:
        picture.savefig(file)
    except ValueError as error:
        raise BadInput(f"{file}: {error}", "hint: a name that ends with .png, .svg or .pdf") from error
