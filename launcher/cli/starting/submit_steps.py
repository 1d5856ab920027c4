"""`launch submit` for a file with `steps:`: start a run for each step, or show what would be started."""

import argparse
import sys

import msgspec

from launcher import api
from launcher.apps.graph import Graph, prepare_graph, submit_graph
from launcher.cli.answers import StartedGraph, started
from launcher.cli.starting.plan_page import plan_page
from launcher.cli.terminal import paint, to_json
from launcher.errors import BadInput, Exit


def submit_steps(options: argparse.Namespace) -> int:
    """Start a run for each step of the file, or with --dry-run show what would be started, and return the exit code.

    Raise BadInput if more than one file is given, or --repeat.
    """
    if len(options.specs) > 1 or options.repeat is not None:
        what = "--repeat" if options.repeat is not None else "other files"
        raise BadInput(f"a file with steps does not go with {what}", "hint: submit it alone")
    if options.dry_run:
        return _dry_run(options)
    graph = submit_graph(options.specs[0], on=options.on, overrides=options.overrides)
    _print_started(graph, as_json=options.json)
    if options.follow:
        from launcher.cli.looking.follow import follow_all  # late: only for --follow

        return follow_all(graph.runs())
    print(f"watch it: launch status {graph.id} --watch", file=sys.stderr)
    return Exit.OK


def _print_started(graph: Graph, *, as_json: bool) -> None:
    """Print the id of the started graph or, with `as_json`, its id, folder and runs."""
    if as_json:
        print(to_json(StartedGraph(graph.id, str(graph.path), tuple(map(started, graph.runs())))), flush=True)
    else:
        print(graph.id, flush=True)


def _dry_run(options: argparse.Namespace) -> int:
    """Print the plan of each step that would be started; return the exit code."""
    steps = prepare_graph(options.specs[0], on=options.on, overrides=options.overrides)
    if options.json:
        print(to_json([{"step": one.name, "needs": one.needs, **msgspec.to_builtins(one.plan)} for one in steps]))
        return Exit.OK
    for one in steps:
        needs = f", once {' and '.join(one.needs)} {'has' if len(one.needs) == 1 else 'have'} succeeded"
        print(paint(f"--- {one.name}{needs if one.needs else ''}", "bold"))
        print("\n".join(plan_page(one.plan, one.code, api.preview(one.plan))))
    return Exit.OK
