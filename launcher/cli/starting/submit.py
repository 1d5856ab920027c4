"""`launch submit`: start runs, or show with --dry-run what would be started."""

import argparse
import re
import sys
from collections.abc import Sequence

import msgspec

from launcher import api
from launcher.apps.graph import is_graph
from launcher.cli.answers import StartedGraph, StartedRun, list_of, merged
from launcher.cli.arguments import Arguments
from launcher.cli.terminal import show_news, to_json
from launcher.errors import BadInput, Exit, LaunchError
from launcher.states import LOCAL

_STEP = re.compile(r":step[:=](?=\d)")

EXAMPLES = """
  launch submit job.yaml                                start it on this machine; prints the run's id
  launch submit job.yaml --follow                       and show its log; ends with the run's exit code
  launch submit job.yaml --on slurm                     the same job on a Slurm cluster
  launch submit job.yaml --set resources.nodes=4        with another value of one option
  launch submit job.yaml --repeat 8                     eight runs of it; LAUNCH_REPEAT is the number of each
  launch submit a.yaml b.yaml                           a run of each file; prints one id per line
  launch submit job.yaml --repeat 20 --max-parallel 2   twenty runs of it, two at a time
  launch submit eval.yaml --after train-7k3f            starts when that run has succeeded; otherwise it is cancelled
  launch submit job.yaml --at 22:00                     tonight; --hold waits for `launch release`
  launch submit train_then_predict.yaml                 all its `steps`, each after the steps that it needs
  launch submit job.yaml --dry-run                      only show what would be done; starts and writes nothing
"""
_MOST = 10_000


class PlannedFile(msgspec.Struct, frozen=True):
    """A file of the code that would be frozen, and its size in bytes."""

    path: str  # relative to the project
    size: int


def declare(arguments: Arguments) -> None:
    """Declare the arguments of `launch submit`."""
    arguments.add_argument("specs", metavar="SPEC", nargs="+", help="the YAML file of the job, or several")
    arguments.takes_place(default=LOCAL)
    arguments.add_argument(
        "--repeat", metavar="N", type=_count, help="number of runs of each file; on Slurm one job array"
    )
    declare_waits(arguments)
    arguments.add_argument("--dry-run", action="store_true", help="show the plan; start and write nothing")
    arguments.prints_json(_answers, "the run, or with --dry-run the whole plan, as JSON")
    arguments.add_argument("-f", "--follow", action="store_true", help="show the log; exits with the run's code")


def _answers() -> dict[str, object]:
    """Return {case: type of the JSON that `launch submit --json` prints then}. A case is a text, such as "--dry-run";
    "" is the usual one.
    """
    from launcher.plan.model import Plan  # late: only for the schema

    optional = str | msgspec.UnsetType
    plan = merged("PlannedRun", Plan, files=tuple[PlannedFile, ...], script=optional, cluster_says=optional)
    step = merged("PlannedStep", Plan, step=str, needs=tuple[str, ...])
    return {
        "": StartedRun,
        "--repeat, or several files": list[StartedRun],
        "a file with steps": StartedGraph,
        "--dry-run": plan,
        "--dry-run and several files": list_of(plan),
        "--dry-run and a file with steps": list_of(step),
    }


def run(options: argparse.Namespace) -> int:
    """Run `launch submit` and return its exit code."""
    show_news()
    options.overrides = overrides_of(options)
    one = len(options.specs) == 1 and options.repeat is None
    if options.follow and (options.dry_run or options.json or not one):
        other = "--dry-run" if options.dry_run else "--json" if options.json else "several runs"
        raise BadInput(f"--follow does not go with {other}")
    if any(map(is_graph, options.specs)):
        from launcher.cli.starting.submit_steps import submit_steps  # late: most files are of one job

        return submit_steps(options)
    if options.dry_run:
        return _dry_run(options)
    try:
        runs = api.submit_many(options.specs, on=options.on, overrides=options.overrides, repeat=options.repeat)
    except LaunchError as error:
        if error.runs:  # of a submit that fails, too, the runs that it has made are named
            _print_started(options, error.runs, one=one)
        raise
    _print_started(options, [(opened.id, str(opened.path)) for opened in runs], one=one)
    if options.follow:
        from launcher.cli.looking.follow import follow  # late: only for --follow

        return follow(runs[0])
    print(f"watch it: launch logs {runs[0].id} -f" if one else "watch them: launch status", file=sys.stderr)
    return Exit.OK


def _print_started(options: argparse.Namespace, runs: Sequence[tuple[str, str]], *, one: bool) -> None:
    """Print the ids of the started runs, which are given as (id, folder), or with --json their ids and folders: an
    object if `one`, else a list.
    """
    if options.json:
        said = [StartedRun(run_id, path) for run_id, path in runs]
        print(to_json(said[0] if one else said), flush=True)
    else:
        print("\n".join(run_id for run_id, _ in runs), flush=True)


def _count(text: str) -> int:
    """Return the number of runs in an option's text, from 1 to `_MOST`; raise ArgumentTypeError for any other text."""
    if not (text.isascii() and text.isdigit() and 0 < int(text) <= _MOST):
        raise argparse.ArgumentTypeError(f"expected a number from 1 to {_MOST}, got {text!r}")
    return int(text)


def _dry_run(options: argparse.Namespace) -> int:
    """Print the plan of each run that would be started; return the exit code."""
    from launcher.cli.starting.plan_page import plan_page  # late: only for --dry-run

    shown = []
    for spec in options.specs:
        plan, code = api.prepare(spec, on=options.on, overrides=options.overrides)
        preview = api.preview(plan)
        if not options.json:
            print("\n".join(plan_page(plan, code, preview)))
            continue
        files = [{"path": _text(entry.path), "size": entry.size} for entry in code.files]
        handed = {} if preview is None else {"script": preview.script, "cluster_says": preview.answer}
        shown.append({**msgspec.to_builtins(plan), "files": files, **handed})
    if options.json:
        print(to_json(shown[0] if len(shown) == 1 else shown))
    return Exit.OK


def _text(path: str) -> str:
    """Return the path for JSON; bytes that are not UTF-8 are replaced."""
    return path.encode(errors="surrogateescape").decode(errors="replace")


def declare_waits(arguments: Arguments) -> None:
    """Declare the options that set conditions for which a run waits before it starts."""
    arguments.add_argument("--hold", action="store_true", help="wait until `launch release RUN`")
    arguments.add_argument("--at", metavar="WHEN", help="wait until this time: 22:00, or 2027-01-31 22:00")
    arguments.add_argument(
        "--after-hours", action="store_const", dest="at", const="after-hours",
        help="on a weekday between 8:00 and 18:00, wait until 18:00",
    )  # fmt: skip
    arguments.add_argument(
        "--after", metavar="RUN[:WHAT]", action="append", default=[],
        help="start when this run has `succeeded` (the default), has `ended`, or has reached `step=N`; cancelled if "
        "that cannot happen any more; may be repeated",
    )  # fmt: skip
    arguments.add_argument(
        "--priority", metavar="N", help="of your own waiting runs, the one with the higher number starts first"
    )
    arguments.add_argument(
        "--now", action="store_true", help="on this machine: do not wait for GPUs and cores that other runs have"
    )
    arguments.add_argument(
        "--max-parallel",
        metavar="N",
        help="at most this number of the runs that are submitted together run at the same time",
    )


def overrides_of(options: argparse.Namespace) -> list[str]:
    """Return the `--set` overrides of a command, and after them those that stand for its options on waiting, such as
    `queue.hold=true` for --hold.
    """
    said = {"at": options.at, "priority": options.priority, "max_parallel": options.max_parallel}
    flags = [name for name in ("hold", "now") if getattr(options, name)]
    return [
        *options.overrides,
        *(f"queue.{name}=true" for name in flags),
        *(f"queue.{name}={value}" for name, value in said.items() if value is not None),
        *(f"queue.after+={_STEP.sub(':step ', ref)}" for ref in options.after),
    ]
