"""`launch status`: show the table of runs, or the page about one run or graph. `now` is the Unix time up to which
durations of active runs count.
"""

import argparse
import os
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

import msgspec

from launcher import api
from launcher.apps.graph import Graph
from launcher.cli.answers import list_of, merged
from launcher.cli.arguments import Arguments
from launcher.cli.graphs.members import graph_called, members
from launcher.cli.graphs.tree import graph_facts, graph_page, heading
from launcher.cli.looking.page import page
from launcher.cli.looking.run_columns import MORE, OURS, USUAL, RunRow, cell, in_order, refuse_unknown, with_about
from launcher.cli.looking.selection import age, declare_selection, selected, selects
from launcher.cli.terminal import REDRAW_S, Screen, fitting, is_terminal, paint, state_colour, to_json, width_of
from launcher.errors import BadInput, Exit, NoSuchRun
from launcher.run.graphs import known_graphs, missing_of
from launcher.run.layout import RunDir
from launcher.states import State
from launcher.status.derive import RunStatus

EXAMPLES = """
  launch status                  active runs, and the newest ended ones
  launch status last             everything about the newest run
  launch status resnet --watch   the same, updated each second until the run ends
  launch status --json           everything, for programs
  launch status --name 'lr*' --state failed --since 2d    only these
  launch status --columns lr,val_loss,commit --sort val_loss --limit 20    with arguments and results as columns
"""
_NAMED = 8
_NEWEST = 20
# What goes first where a terminal is too narrow; the others are cut.
_LESS = ("rate", "nodes", "restarts", "where", "duration", "age", "step")


@dataclass(frozen=True, slots=True)
class Table:
    """The lines of a table, and a note for the user on what the table leaves out."""

    lines: list[str]
    note: str = ""  # on what is left out


def table(
    rows: Sequence[RunRow], now: float, *, everything: bool, wanted: Sequence[str] = USUAL, width: int | None = None
) -> Table:
    """Return the table of the first 20 rows and all active runs or, with `everything`, of all rows, in the given order.

    `now` is the Unix time up to which durations count. `wanted` are the table's columns; those for names and tags are
    added if a run has any. If the table is wider than `width`, less important columns are left out; None means no
    limit. The sentence beside the table says how many runs are left out.
    """
    if not rows:
        return Table([], "no runs yet; `launch submit FILE` starts one, `launch spec init` writes a spec")
    shown = [row for index, row in enumerate(rows) if everything or index < _NEWEST or _active(row.status)]
    more = len(rows) - len(shown)
    shown, wanted = (
        ([*map(with_about, shown)], [*wanted, "name", "tags"]) if _any_labels(shown, wanted) else (shown, wanted)
    )
    lines = _fitting(shown, now, wanted, width)
    coloured = [paint(lines[0], "dim")]
    for line, row, above in zip(lines[1:], shown, [None, *shown], strict=False):
        if row.drawn and row.member is not None and (above is None or not _same_graph(row, above)):
            coloured.append(heading(row.member.graph, row.member.state))
        coloured.append(paint(line, state_colour(row.status.state)))
    return Table(coloured, f"{more} more have ended; `launch status --all` shows them" if more else "")


def together(rows: Sequence[RunRow]) -> list[RunRow]:
    """Return the rows in another order: the runs of each graph, which are its steps, follow one another in the order of
    its tree, where the first of them was; they are marked `drawn`, to be shown below the graph's name. The other rows
    keep their order.
    """
    first = dict[str, int]()
    for index, row in enumerate(rows):
        first.setdefault(row.member.graph if row.member is not None else row.status.run, index)
    drawn = [replace(row, drawn=row.member is not None) for row in rows]
    return sorted(drawn, key=lambda row: _place_of(row, first))


def _place_of(row: RunRow, first: Mapping[str, int]) -> tuple[int, int]:
    """Return the sort key of a row, which keeps the rows of a graph together, in the order of its tree: (index of the
    graph's first row, position of the run in the tree), or for a run in no graph (index of its own row, 0).

    `first` has the index of the first row by the graph's id, and of the only row by the id of a run in no graph.
    """
    return (first[row.status.run], 0) if row.member is None else (first[row.member.graph], row.member.place)


def _same_graph(row: RunRow, other: RunRow) -> bool:
    """Return whether both runs are steps of the same graph; False if either is in none."""
    return row.member is not None and other.member is not None and row.member.graph == other.member.graph


def _any_labels(rows: Sequence[RunRow], wanted: Sequence[str]) -> bool:
    """Return whether the table should have a column of labels (names and tags): if the user has chosen no columns, so
    that `wanted` are the usual ones, and a run in `rows` has labels.
    """
    labels = RunDir.labels.name
    return wanted == USUAL and any(os.path.exists(os.path.join(row.status.run_dir, labels)) for row in rows)


def _fitting(rows: Sequence[RunRow], now: float, wanted: Sequence[str], width: int | None) -> list[str]:
    """Return the lines of the table of `rows` with the columns `wanted`; less important ones are left out until it fits
    `width` (None: no limit).
    """
    cells = {name: [name.upper(), *(cell(row, name, now) for row in rows)] for name in wanted}
    return fitting([*zip(*cells.values(), strict=True)], [name.upper() for name in _LESS], width)


def _active(status: RunStatus) -> bool:
    """Return whether the run is known not to have ended; a run whose state is unknown does not count."""
    return not status.state.ended and status.state is not State.UNKNOWN


def declare(arguments: Arguments) -> None:
    """Declare the arguments of `launch status`."""
    arguments.takes_run(nargs="?")
    arguments.prints_json(_answers, "everything that is known, as JSON")
    arguments.add_argument(
        "--watch", action="store_true", help="update the display each second until the run has ended"
    )
    arguments.add_argument("--all", action="store_true", help="all runs, not only active and newest ones")
    declare_selection(arguments)
    arguments.add_argument(
        "--since", metavar="AGE", type=age, help="runs submitted since 2d or 12h ago, or since 2026-01-31"
    )
    arguments.add_argument(
        "--columns", metavar="NAMES", type=_names,
        help="after RUN and STATE: " + ", ".join((*USUAL[2:], *MORE)) + ", a metric, an argument of the script",
    )  # fmt: skip
    arguments.add_argument(
        "--sort", metavar="NAME", help="sort by this column, smallest first (default: newest run first)"
    )
    arguments.add_argument("--reverse", action="store_true", help="reverse the order")
    arguments.add_argument("--limit", metavar="N", type=_number, help="at most this number of runs")


def _answers() -> dict[str, object]:
    """Return the types of what `launch status --json` can print. The key says for which argument of the command each is
    printed: "RUN", "no RUN" or "a file with steps".
    """
    from launcher.status.about import About  # late: only for the schema

    graph = merged("GraphStep", id=str, step=str, needs=tuple[str, ...]) | msgspec.UnsetType
    one = merged("RunPage", RunStatus, About, graph=graph, goodput=float | None, spent_s=dict[str, float])
    row = merged("RunRow", RunStatus, About, graph=graph)
    step = merged("StepOfGraph", step=str, needs=tuple[str, ...], run=str, status=RunStatus | None)
    return {
        "RUN": one,
        "no RUN": list_of(row),
        "a file with steps": merged("GraphPage", graph=str, graph_dir=str, state=State, steps=list_of(step)),
    }


def run(options: argparse.Namespace) -> int:
    """Run `launch status` and return its exit code."""
    if options.watch:
        if options.json or not is_terminal(sys.stdout):
            raise BadInput("--watch draws on a terminal", "hint: `launch wait RUN` waits, `launch logs RUN -f` follows")
        return _watch(options)
    if (graph := graph_called(options.run)) is not None:
        print(to_json(graph_facts(graph)) if options.json else "\n".join(graph_page(graph)[0]))
        return Exit.OK
    if options.run is not None:
        status = _status_of(options.run)
        print(to_json(_run_facts(status)) if options.json else "\n".join(page(status, time.time())))
        return Exit.OK
    rows = _rows(options)
    if options.json:
        print(to_json([_whole(row) for row in rows]))
        return Exit.OK
    shown = _table(rows, options)
    if shown.lines:
        print("\n".join(shown.lines))
    if shown.note:
        print(shown.note, file=sys.stderr)
    for note in _lacking_notes():
        print(note, file=sys.stderr)
    return Exit.OK


def _lacking_notes() -> Iterator[str]:
    """Yield lines about what the table lacks: steps of graphs for which no run was started, and runs of this project
    that were submitted with another $HOME.
    """
    for graph in known_graphs():
        if steps := missing_of(graph):
            names = ", ".join(step.name for step in steps)
            yield f"{graph.id}: {names} not started yet; launch resume {graph.id} does it"
    if others := api.unlisted():
        yield f"{', '.join(one.id for one in others[:_NAMED])}: {api.UNLISTED}"


def _status_of(ref: str) -> RunStatus:
    """Return the status of the one run that `ref` names; raise NoSuchRun if there is none. For a run of this project
    that was submitted with another $HOME, return the recorded status.
    """
    try:
        return api.run(ref).status()
    except NoSuchRun:
        found = api.unlisted(ref)
        if len(found) != 1:
            raise
        return api.recorded_status(found[0])


def _rows(options: argparse.Namespace, fresh_s: float = 0.0) -> list[RunRow]:
    """Return the rows of the selected runs in the chosen order; raise BadInput for a column that no run has.

    A cluster's answer may be `fresh_s` seconds old.
    """
    statuses, now = _newest_first(fresh_s), time.time()
    asked = [*(options.columns or ()), *([options.sort] if options.sort else [])]
    if any(name not in OURS for name in asked):
        refuse_unknown([with_about(RunRow(status)) for status in statuses], asked)
    of_graphs = members(statuses)
    if options.since is not None:
        statuses = [status for status in statuses if now - status.submitted_at <= options.since]
    rows = [RunRow(status, member=of_graphs.get(status.run)) for status in statuses]
    if options.json or options.columns or options.sort or selects(options):
        rows = selected([with_about(row) for row in rows], options)
    if options.sort:
        rows = in_order(rows, options.sort, now, reverse=options.reverse)
    else:
        rows = together(rows)[:: -1 if options.reverse else 1]
    return rows[: options.limit]


def _table(rows: list[RunRow], options: argparse.Namespace) -> Table:
    """Return the table of these rows, with the columns that the options choose."""
    wanted = USUAL if options.columns is None else tuple(dict.fromkeys(("run", "state", *options.columns)))
    width = width_of(sys.stdout)
    asked = selects(options) or bool(options.limit or options.since)
    if asked and not rows:
        return Table([], "no such runs; `launch status --all` shows all")
    everything = options.all or asked
    return table(rows, time.time(), everything=everything, wanted=wanted, width=width)


def _whole(row: RunRow) -> dict[str, object]:
    """Return a run's row as `--json` prints it: all fields of its status and, if `row.about` was read, those of it
    (arguments, description, labels). For a step of a graph there is the key `graph`, with the graph's id, the step's
    name and the steps that it needs.
    """
    said = {**msgspec.structs.asdict(row.status), **(msgspec.structs.asdict(row.about) if row.about else {})}
    member = row.member
    if member is None:
        return said
    return {**said, "graph": {"id": member.graph, "step": member.step, "needs": member.needs}}


def _run_facts(status: RunStatus) -> dict[str, object]:
    """Return what `launch status RUN --json` prints of a run: its status, labels and position in a graph; `goodput`,
    the share of time spent on steps that were not repeated; and in `spent_s` the seconds spent on each activity.
    """
    from launcher.status.life import read_life  # late: the table of runs does without

    life = read_life(status, time.time())
    return {**_whole(with_about(RunRow(status))), "goodput": life.goodput, "spent_s": life.seconds}


def _names(text: str) -> tuple[str, ...]:
    """Return the names in an option's text, which are separated by commas."""
    return tuple(word.strip() for word in text.split(",") if word.strip())


def _number(text: str) -> int:
    """Return the number of runs in an option's text, at least 1; raise ArgumentTypeError for any other text."""
    if not (text.isascii() and text.isdigit() and int(text)):
        raise argparse.ArgumentTypeError(f"expected a number of runs, got {text!r}")
    return int(text)


def _newest_first(fresh_s: float = 0.0) -> list[RunStatus]:
    """Return the status of every run of which anything is recorded, the newest first.

    A cluster's answer may be `fresh_s` seconds old.
    """
    statuses = [*api.statuses(api.runs(), fresh_s), *map(api.recorded_status, api.unlisted())]
    there = [status for status in statuses if status.state is not State.UNKNOWN or status.submitted_at > 0]
    return sorted(there, key=lambda status: (status.submitted_at, status.run), reverse=True)


def _watch(options: argparse.Namespace) -> int:
    """Draw the page or table again every second until all runs on it have ended; return the exit code."""
    graph = graph_called(options.run)
    if graph is not None:
        look = partial(_graph_page, graph)
    elif options.run is not None:
        look = partial(_run_page, api.run(options.run))
    else:
        look = partial(_whole_table, options)
    screen = Screen(sys.stdout)
    while True:
        lines, ended = look()
        screen.show(lines, last=ended)
        if ended:
            return Exit.OK
        time.sleep(REDRAW_S)


def _graph_page(graph: Graph) -> tuple[list[str], bool]:
    """Return (the lines about a graph, whether it has ended)."""
    lines, state = graph_page(graph, api.WATCH_S)
    return lines, state.ended


def _run_page(one: api.Run) -> tuple[list[str], bool]:
    """Return (the lines about a run, whether it has ended)."""
    status = one.status(api.WATCH_S)
    return page(status, time.time()), status.state.ended


def _whole_table(options: argparse.Namespace) -> tuple[list[str], bool]:
    """Return (the lines of the table and its note, whether all runs in it have ended). Raise BadInput for a column that
    no run has.
    """
    rows = _rows(options, api.WATCH_S)
    shown = _table(rows, options)
    notes = [shown.note] if shown.note else []
    return [*shown.lines, *notes], all(row.status.state.ended for row in rows)
