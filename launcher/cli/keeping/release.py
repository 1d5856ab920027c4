"""`launch release`: let runs start that were submitted with --hold."""

import argparse

from launcher import api
from launcher.cli.answers import StartedRun, started
from launcher.cli.arguments import Arguments
from launcher.cli.looking.selection import chosen
from launcher.cli.terminal import show_news, to_json
from launcher.errors import Exit

EXAMPLES = """
  launch submit job.yaml --hold      it waits until `launch release`
  launch release last                now it starts, as soon as enough GPUs are free
"""


def declare(arguments: Arguments) -> None:
    """Declare the arguments of `launch release`."""
    arguments.takes_runs()
    arguments.prints_json(lambda: {"": list[StartedRun]}, "those that are not held any more, as JSON")


def run(options: argparse.Namespace) -> int:
    """Run `launch release` and return its exit code."""
    show_news()
    runs = chosen(options.runs)
    for one in runs:
        api.release(one)
        if not options.json:
            print(f"{one.id} is not held any more")
    if options.json:
        print(to_json([*map(started, runs)]))
    return Exit.OK
