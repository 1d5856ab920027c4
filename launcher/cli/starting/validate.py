"""`launch spec validate`: all problems of spec files, without starting anything."""

import argparse
import sys

from launcher import api
from launcher.apps.graph import is_graph, validate_graph
from launcher.cli.arguments import Arguments
from launcher.cli.terminal import safe, show_news
from launcher.errors import BadInput, Exit

EXAMPLES = """
  launch spec validate job.yaml           `job.yaml: ok`, or one line for each problem and exit code 2
  launch spec validate jobs/*.yaml        every file is looked at, whatever the ones before were like
"""


def declare(arguments: Arguments) -> None:
    arguments.add_argument("files", metavar="FILE", nargs="+", help="a spec file")
    arguments.add_argument(
        "--set", metavar="KEY=VALUE", action="append", default=[], dest="overrides", help="check it with this override"
    )


def run(options: argparse.Namespace) -> int:
    show_news()
    good = [_is_good(name, options.overrides) for name in options.files]
    return Exit.OK if all(good) else Exit.BAD_INPUT


def _is_good(file: str, overrides: list[str]) -> bool:
    try:
        if is_graph(file):
            validate_graph(file, overrides=overrides)
        else:
            api.validate(file, overrides=overrides)
    except BadInput as error:
        sys.stdout.flush()  # where both go to one place, in the order of the files
        print("\n".join(map(safe, str(error).splitlines())), file=sys.stderr)
        return False
    print(f"{safe(file)}: ok")
    return True
