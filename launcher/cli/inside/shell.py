"""`launch shell`: open a shell on a rank's node, beside the rank."""

import argparse

from launcher.cli.arguments import Arguments
from launcher.cli.inside.exec import run_beside_rank, takes_rank

EXAMPLES = """
  launch shell last              on the node of rank 0, in its folder, with its environment
  launch shell resnet --rank 5
  launch shell last <look.sh     what is not typed is read

It is the shell that you have on that node. `exit` or Ctrl-D leaves; the run goes on.
"""


def declare(arguments: Arguments) -> None:
    """Declare the arguments of `launch shell`."""
    arguments.takes_run()
    takes_rank(arguments)


def run(options: argparse.Namespace) -> int:
    """Run `launch shell` until the shell exits, and return the shell's exit code.

    Raise Refused if the rank does not run.
    """
    return run_beside_rank(options, [])
