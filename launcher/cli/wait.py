"""`launch wait`: return when the run has ended, with its exit code."""

import argparse
import sys

from launcher import api
from launcher.cli.arguments import Arguments, seconds
from launcher.cli.page import headline
from launcher.cli.terminal import safe
from launcher.errors import Refused
from launcher.status.derive import exit_code_of

EXAMPLES = """
  launch wait last && launch submit next.yaml     one after the other
  launch wait resnet --timeout 60                 exit code 4 where it is not over by then
"""


def declare(arguments: Arguments) -> None:
    arguments.takes_run()
    arguments.add_argument("--timeout", metavar="SECONDS", type=seconds, help="give up after so long, with exit code 4")


def run(options: argparse.Namespace) -> int:
    one = api.run(options.run)
    try:
        status = one.wait(options.timeout)
    except TimeoutError as error:
        raise Refused(str(error), f"hint: launch status {one.id}") from None
    print(headline(status))
    if status.next:
        print(f"next: {safe(status.next)}", file=sys.stderr)
    return exit_code_of(status)
