"""`launch resume`: a new attempt of an ended or lost run."""

import argparse
import sys

from launcher import api
from launcher.cli.arguments import Arguments
from launcher.cli.terminal import show_news
from launcher.errors import Exit

EXAMPLES = """
  launch resume last                                     from the newest verified checkpoint, as it was
  launch resume last --code                              with the code as it is now: a bug is mended
  launch resume resnet --on pool2                        elsewhere, or there as the clusters file has it by now
  launch resume resnet --set resources.nodes=2           with another world
  launch resume resnet --set run.args.lr=0.01 --follow   with other arguments, and watch it
"""


def declare(arguments: Arguments) -> None:
    arguments.takes_run()
    arguments.takes_place(default=None)
    arguments.add_argument(
        "--anew", action="store_true", help="begin from nothing where no checkpoint is whole on the hosts that are here"
    )
    arguments.add_argument("--code", action="store_true", help="with the project's code as it is now, a bug mended say")
    arguments.add_argument("-f", "--follow", action="store_true", help="show its log; ends with the run's exit code")


def run(options: argparse.Namespace) -> int:
    show_news()
    one = api.run(options.run).resume(on=options.on, overrides=options.overrides, anew=options.anew, code=options.code)
    print(one.id, flush=True)
    if options.follow:
        from launcher.cli.looking.follow import follow  # late: only for --follow

        return follow(one)
    print(f"watch it: launch logs {one.id} -f", file=sys.stderr)
    return Exit.OK
