"""`launch tag`: words by which runs are found again."""

import argparse
import re

from launcher import api
from launcher.cli.arguments import Arguments
from launcher.errors import Exit

EXAMPLES = """
  launch tag last baseline            `launch status --tag baseline` shows it from now on
  launch tag resnet --remove old      takes one away
  launch tag resnet                   shows those that it has
"""
_TAG = re.compile(r"[^\W_][\w.:/=+-]{0,62}")


def declare(arguments: Arguments) -> None:
    arguments.takes_run()
    arguments.add_argument("tags", metavar="TAG", nargs="*", type=_tag, help="given to it")
    arguments.add_argument(
        "--remove", metavar="TAG", action="append", default=[], help="taken away from it; may be repeated"
    )


def run(options: argparse.Namespace) -> int:
    said = api.run(options.run).label(add=options.tags, remove=options.remove)
    for tag in said.tags:
        print(tag)
    return Exit.OK


def _tag(text: str) -> str:
    if not _TAG.fullmatch(text):
        raise argparse.ArgumentTypeError(f"expected a tag of letters, digits and . : / = + - _, got {text!r}")
    return text
