"""`launch cancel`: end runs for good, and print what was ended."""

import argparse
import sys

import msgspec

from launcher.cli.arguments import Arguments
from launcher.cli.looking.selection import runs_like
from launcher.cli.terminal import safe, show_news, to_json
from launcher.errors import Exit
from launcher.states import State

EXAMPLES = """
  launch cancel last                 the ranks get SIGTERM and the spec's grace to save, then no process of it is left
  launch cancel lr-4ykr lr-9x2d      both, one after the other
  launch cancel 'lr-*'               all active runs whose id or name matches this pattern
  launch cancel train-predict-7k3f   all steps of that file
  launch cancel resnet --gone gpu07  the same; gpu07 is lost for good, so do not wait for it
"""


class CancelledRun(msgspec.Struct, frozen=True):
    """The result of cancelling a run: texts on what was `ended`, and on machines that could not be reached (`cut_off`).
    `already_ended`: the run had ended before.
    """

    run: str  # its id
    state: State  # of the run, after the cancel
    already_ended: bool
    ended: tuple[str, ...]  # texts on what was ended
    cut_off: tuple[str, ...]  # texts on machines that could not be reached


def declare(arguments: Arguments) -> None:
    """Declare the arguments of `launch cancel`."""
    arguments.takes_runs(patterns=True)
    arguments.add_argument(
        "--gone",
        metavar="HOST",
        action="append",
        default=[],
        help="a host of a pool that is lost for good: the run can be resumed without it; may be repeated",
    )
    arguments.prints_json(lambda: {"": list[CancelledRun]}, "what was ended, as JSON")


def run(options: argparse.Namespace) -> int:
    """Run `launch cancel` and return its exit code."""
    show_news()
    over = list[CancelledRun]()
    try:
        for one in runs_like(options.runs, last_first=True):
            report = one.cancel(gone=options.gone)
            found = CancelledRun(one.id, one.status().state, report.already, tuple(report.ended), tuple(report.cut_off))
            over.append(found)
            if not options.json:
                _show(found)
    finally:
        if options.json:
            print(to_json(over), flush=True)
    return Exit.OK


def _show(found: CancelledRun) -> None:
    """Print what the cancel ended, and which machines could not be reached."""
    if found.already_ended:
        print(f"{found.run} has already ended: nothing was left to end")
        return
    for line in found.ended:
        print(f"ended {safe(line)}")
    for line in found.cut_off:
        print(safe(line), file=sys.stderr)
    print(f"{found.run} is {found.state}", flush=True)
