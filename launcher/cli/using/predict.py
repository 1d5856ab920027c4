"""`launch predict`: apply a run's model to a whole data set, in a new run."""

import argparse
import sys
from pathlib import Path

from launcher import api
from launcher.cli.answers import StartedRun, started
from launcher.cli.arguments import Arguments
from launcher.cli.terminal import show_news, to_json
from launcher.errors import BadInput, Exit
from launcher.states import LOCAL

EXAMPLES = """
  launch predict last -o answers.jsonl --follow                         of its validation data, by its best checkpoint
  launch predict gpt -o judged.jsonl --data /data/new.txt               of other data
  launch predict resnet -o answers.csv --on pool --set resources.nodes=4

A run of its own, of the first one's frozen code and arguments: a line for each sample, in order, as JSON, or in a table
where FILE ends in .csv or .parquet (which needs the extra `parquet` where it runs). Its ranks share the
samples out, and the model as in its training (`--set run.args.mesh=none` leaves a mesh out); each sample is answered
once. When it was killed, it goes on with what is missing; so does `resume`. It works for a run of a module or a script
that takes --predict and --checkpoint, as the shipped tasks do; `launch help predictions` shows a script. Where nodes
do not see this disk the checkpoint goes along, and the answers come here with --follow, or by `launch fetch --outputs`.
"""


def declare(arguments: Arguments) -> None:
    """Declare the arguments of `launch predict`."""
    arguments.takes_run()
    arguments.add_argument(
        "-o",
        "--output",
        metavar="FILE",
        type=Path,
        required=True,
        help="the file for the answers; FILE.about.json describes them",
    )
    arguments.add_argument(
        "--checkpoint", metavar="FOLDER", type=Path,
        help="the checkpoint (default: the best, if one was kept, else the newest complete one)",
    )  # fmt: skip
    arguments.add_argument(
        "--data", metavar="PATH", type=Path,
        help="the samples: a text for trainer.tasks.gpt, a folder for trainer.tasks.resnet, for others their --data "
        "(default: those of the validation)",
    )  # fmt: skip
    arguments.takes_place(default=LOCAL)
    arguments.add_argument("-f", "--follow", action="store_true", help="show the log; exits with the run's code")
    arguments.prints_json(lambda: {"": StartedRun}, "the run, as JSON")


def run(options: argparse.Namespace) -> int:
    """Run `launch predict` and return its exit code."""
    show_news()
    if options.follow and options.json:
        raise BadInput("--follow does not go with --json")
    one = api.predict(
        api.run(options.run),
        options.output,
        checkpoint=options.checkpoint,
        data=options.data,
        on=options.on,
        overrides=options.overrides,
    )
    print(to_json(started(one)) if options.json else one.id, flush=True)
    if options.follow:
        from launcher.cli.looking.follow import follow  # late: only for --follow

        code = follow(one)
        if code == Exit.OK and not options.output.exists():
            api.fetch_predictions(one, options.output)
        return code
    print(f"watch it: launch logs {one.id} -f", file=sys.stderr)
    if options.on != LOCAL:
        print(f"its answers, where its nodes do not see this disk: launch fetch {one.id} --outputs", file=sys.stderr)
    return Exit.OK
