"""`launch tag`: label runs so that they can be found again."""

import argparse
import re

from launcher.cli.arguments import Arguments
from launcher.cli.looking.selection import runs_like
from launcher.errors import Exit

EXAMPLES = """
  launch tag last baseline            `launch status --tag baseline` shows it from now on
  launch tag resnet --remove old      takes one away
  launch tag resnet                   shows those that it has
"""
_TAG = re.compile(r"[^\W_][\w.:/=+-]{0,62}")


def declare(arguments: Arguments) -> None:
    """Declare the arguments of `launch tag`."""
    arguments.takes_run(pattern=True)
    arguments.add_argument("tags", metavar="TAG", nargs="*", type=tag_word, help="a tag to add")
    arguments.add_argument(
        "--remove", metavar="TAG", action="append", default=[], help="remove this tag; may be repeated"
    )


def run(options: argparse.Namespace) -> int:
    """Run `launch tag` and return its exit code."""
    for one in runs_like([options.run]):
        for tag in one.label(add=options.tags, remove=options.remove).tags:
            print(tag)
    return Exit.OK


def tag_word(text: str) -> str:
    """Return an option's text unchanged if it can be a tag: letters, digits and . : / = + - _; raise ArgumentTypeError
    for any other text.
    """
    if not _TAG.fullmatch(text):
        raise argparse.ArgumentTypeError(f"expected a tag of letters, digits and . : / = + - _, got {text!r}")
    return text
