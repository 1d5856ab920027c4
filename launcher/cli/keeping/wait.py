"""`launch wait`: return when the runs have ended, with their exit code."""

import argparse
import sys
import time
from math import inf

from launcher.cli.arguments import Arguments, seconds
from launcher.cli.graphs.meant import graph_called, refuse_missing
from launcher.cli.looking.page import headline
from launcher.cli.looking.selection import chosen
from launcher.cli.terminal import safe
from launcher.errors import Exit, Refused
from launcher.status.derive import exit_code_of

EXAMPLES = """
  launch wait last && launch submit next.yaml     one after the other
  launch wait lr-4ykr lr-9x2d                     for all of them; the exit code of the first one that failed
  launch wait resnet --timeout 60                 exit code 4 where it is not over by then
"""


def declare(arguments: Arguments) -> None:
    arguments.takes_runs()
    arguments.add_argument("--timeout", metavar="SECONDS", type=seconds, help="give up after so long, with exit code 4")


def run(options: argparse.Namespace) -> int:
    end = inf if options.timeout is None else time.monotonic() + options.timeout
    codes = []
    for graph in filter(None, map(graph_called, options.runs)):
        refuse_missing(graph)
    for one in chosen(options.runs):
        left_s = end - time.monotonic()
        try:
            status = one.wait(None if left_s == inf else max(0.0, left_s))
        except TimeoutError:
            text = f"{one.id} is still {one.status().state} after {options.timeout:g} s"
            raise Refused(text, f"hint: launch status {one.id}") from None
        print(headline(status), flush=True)
        if status.next:
            print(f"next: {safe(status.next)}", file=sys.stderr)
        codes.append(exit_code_of(status))
    return next((code for code in codes if code != Exit.OK), Exit.OK)
