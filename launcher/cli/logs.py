"""`launch logs`: the merged log of all ranks, or of some."""

import argparse
import sys

from launcher import api
from launcher.cli.arguments import Arguments
from launcher.cli.follow import follow
from launcher.cli.log_lines import Prefix, json_line
from launcher.errors import Exit
from launcher.status.derive import exit_code_of

EXAMPLES = """
  launch logs last               all that was written, by time, with node:rank before each line
  launch logs resnet -f          as it grows, until the run has ended; Ctrl-C stops only the following
  launch logs last --rank 0      of rank 0 alone; may be repeated
  launch logs last --json        one object a line, for programs
"""


def declare(arguments: Arguments) -> None:
    arguments.takes_run()
    arguments.add_argument(
        "-f", "--follow", action="store_true", help="go on until the run has ended; ends with the run's exit code"
    )
    arguments.add_argument(
        "--rank", metavar="N", type=_rank, action="append", help="of this rank only; may be repeated"
    )
    arguments.add_argument("--json", action="store_true", help="one JSON object a line")


def run(options: argparse.Namespace) -> int:
    one = api.run(options.run)
    if options.follow and not options.json:
        return follow(one, options.rank)
    lines = one.logs(ranks=options.rank, follow=options.follow)
    show = json_line if options.json else Prefix(sys.stdout).whole
    for line in lines:
        print(show(line), flush=options.follow)
    return exit_code_of(one.status()) if options.follow else Exit.OK


def _rank(text: str) -> int:
    if not (text.isascii() and text.isdigit()):
        raise argparse.ArgumentTypeError(f"expected a rank such as 0, got {text!r}")
    return int(text)
