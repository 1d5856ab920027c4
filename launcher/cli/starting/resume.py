"""`launch resume`: start a new attempt of an ended or lost run."""

import argparse
import sys

from launcher import api
from launcher.apps.graph import Graph
from launcher.cli.answers import StartedGraph, StartedRun, started
from launcher.cli.arguments import Arguments
from launcher.cli.graphs.members import graph_called
from launcher.cli.terminal import show_news, to_json
from launcher.errors import BadInput, Exit

EXAMPLES = """
  launch resume last                                     continue from the newest verified checkpoint
  launch resume last --code                              with the present code, in which a bug is fixed
  launch resume resnet --on pool2                        on another cluster, or with its present options
  launch resume resnet --set resources.nodes=2           with another number of ranks
  launch resume resnet --set run.args.lr=0.01 --follow   with other arguments, and watch it
  launch resume resnet --without gpu07                   gpu07 is lost for good: continue without it
  launch resume train-predict-7k3f                       for a file with steps: continue from the failed step
"""


def declare(arguments: Arguments) -> None:
    """Declare the arguments of `launch resume`."""
    arguments.takes_run()
    arguments.takes_place(default=None)
    arguments.add_argument(
        "--anew", action="store_true", help="start from step 0 if no checkpoint is complete on the reachable hosts"
    )
    arguments.add_argument("--code", action="store_true", help="use the project's present code")
    arguments.add_argument(
        "--without",
        metavar="HOST",
        action="append",
        default=[],
        help="a host of a pool that is lost for good; may be repeated",
    )
    arguments.add_argument("-f", "--follow", action="store_true", help="show the log; exits with the run's code")
    arguments.prints_json(lambda: {"": StartedRun, "a file with steps": StartedGraph}, "what goes on, as JSON")


def run(options: argparse.Namespace) -> int:
    """Run `launch resume` and return its exit code."""
    show_news()
    if options.follow and options.json:
        raise BadInput("--follow does not go with --json")
    if (graph := graph_called(options.run)) is not None:
        return _resume_graph(graph, options)
    how = {"anew": options.anew, "code": options.code, "without": options.without}
    one = api.run(options.run).resume(on=options.on, overrides=options.overrides, **how)
    print(to_json(started(one)) if options.json else one.id, flush=True)
    if options.follow:
        from launcher.cli.looking.follow import follow  # late: only for --follow

        return follow(one)
    print(f"watch it: launch logs {one.id} -f", file=sys.stderr)
    return Exit.OK


def _resume_graph(graph: Graph, options: argparse.Namespace) -> int:
    """Resume the runs of a graph's steps that have failed, or were cancelled because others had, and start those that
    are missing; print them, follow them with `--follow`, and return the exit code. Raise BadInput for options that only
    a single run can have, and Refused if no step has to be resumed.
    """
    if options.on is not None or options.overrides or options.without:
        run = graph.runs()[0].id if graph.runs() else "RUN"
        hint = f"hint: those of one step are changed by its own run, as in `launch resume {run} --set ...`"
        raise BadInput(f"{graph.id} is several runs: --on, --set and --without are for one", hint)
    runs = graph.resume(anew=options.anew, code=options.code)
    if options.json:
        print(to_json(StartedGraph(graph.id, str(graph.path), tuple(map(started, runs)))), flush=True)
    else:
        print("\n".join(one.id for one in runs), flush=True)
    if options.follow:
        from launcher.cli.looking.follow import follow_all  # late: only for --follow

        return follow_all(runs)
    print(f"watch it: launch status {graph.id} --watch", file=sys.stderr)
    return Exit.OK
