"""`launch rm`: take runs away, all of them or none."""

import argparse
import sys

from launcher import api
from launcher.cli import figures
from launcher.cli.arguments import Arguments
from launcher.cli.selection import chosen
from launcher.errors import Exit
from launcher.rundir.removal import remove_run, remove_unused_code, unused_code

EXAMPLES = """
  launch rm resnet-4ykr                 with its code, logs and checkpoints; a live run is refused
  launch rm resnet-4ykr lr-9x2d         both or, if one of them is live, none
"""


def declare(arguments: Arguments) -> None:
    arguments.takes_runs()


def run(options: argparse.Namespace) -> int:
    runs = chosen(options.runs)
    for status in api.statuses(runs):
        api.refuse_live(status)
    for one in runs:
        size, elsewhere = one.usage().total, one.wrote_elsewhere
        remove_run(one.id, one.path)
        print(f"{one.id} is gone, with {figures.size(size)}")
        if elsewhere:
            print(f"{one.id}: what it left on other machines is still there", file=sys.stderr)
    remove_unused_code(unused_code({one.path.parent for one in runs}))
    return Exit.OK
