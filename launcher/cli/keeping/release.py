"""`launch release`: let runs go that were submitted with --hold."""

import argparse

from launcher import api
from launcher.cli.arguments import Arguments
from launcher.cli.looking.selection import chosen
from launcher.cli.terminal import show_news
from launcher.errors import Exit

EXAMPLES = """
  launch submit job.yaml --hold      it waits
  launch release last                now it starts, as soon as there is room
"""


def declare(arguments: Arguments) -> None:
    arguments.takes_runs()


def run(options: argparse.Namespace) -> int:
    show_news()
    for one in chosen(options.runs):
        api.release(one)
        print(f"{one.id} is not held any more")
    return Exit.OK
