"""`launch rm`: take runs away, all of them or none."""

import argparse
import sys

from launcher import api
from launcher.cli import figures
from launcher.cli.arguments import RUN_HELP, Arguments
from launcher.errors import Exit
from launcher.rundir.removal import remove_run, remove_unused_code, unused_code

EXAMPLES = """
  launch rm resnet-4ykr                 with its code, logs and checkpoints; a live run is refused
  launch rm resnet-4ykr lr-9x2d         both or, if one of them is live, none
"""


def declare(arguments: Arguments) -> None:
    arguments.add_argument("runs", metavar="RUN", nargs="+", help=RUN_HELP)


def run(options: argparse.Namespace) -> int:
    chosen = list({one.id: one for one in map(api.run, options.runs)}.values())
    for status in api.statuses(chosen):
        api.refuse_live(status)
    for one in chosen:
        size, elsewhere = one.usage().total, one.wrote_elsewhere
        remove_run(one.id, one.path)
        print(f"{one.id} is gone, with {figures.size(size)}")
        if elsewhere:
            print(f"{one.id}: what it left on other machines is still there", file=sys.stderr)
    remove_unused_code(unused_code({one.path.parent for one in chosen}))
    return Exit.OK
