"""`launch cancel`: end runs for good, and say what was ended."""

import argparse
import sys
from collections.abc import Sequence

from launcher import api
from launcher.cli.arguments import Arguments
from launcher.cli.looking.selection import runs_like
from launcher.cli.terminal import safe, show_news
from launcher.errors import Exit

EXAMPLES = """
  launch cancel last                 the ranks get SIGTERM and the spec's grace to save, then no process of it is left
  launch cancel lr-4ykr lr-9x2d      both, one after the other
  launch cancel 'lr-*'               all whose id or name is like this; those that have ended stay as they are
  launch cancel train-predict-7k3f   all steps of that file
  launch cancel resnet --gone gpu07  the same; gpu07 burnt down, so that nobody waits for its word
"""


def declare(arguments: Arguments) -> None:
    arguments.takes_runs(patterns=True)
    arguments.add_argument(
        "--gone",
        metavar="HOST",
        action="append",
        default=[],
        help="a host of a pool that will never answer again: the run can be resumed without it; may be repeated",
    )


def run(options: argparse.Namespace) -> int:
    show_news()
    for one in runs_like(options.runs, last_first=True):
        _cancel(one, options.gone)
    return Exit.OK


def _cancel(one: api.Run, gone: Sequence[str]) -> None:
    report = one.cancel(gone=gone)
    if report.already:
        print(f"{one.id} has already ended: nothing was left to end")
        return
    for line in report.ended:
        print(f"ended {safe(line)}")
    for line in report.cut_off:
        print(safe(line), file=sys.stderr)
    print(f"{one.id} is {one.status().state}")
