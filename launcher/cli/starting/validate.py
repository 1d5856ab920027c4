"""`launch spec validate`: print all problems of spec files; nothing is started."""

import argparse
import sys
from collections.abc import Sequence

import msgspec

from launcher import api
from launcher.apps.graph import is_graph, validate_graph
from launcher.cli.arguments import Arguments
from launcher.cli.terminal import safe, show_news, to_json
from launcher.errors import BadInput, Exit

EXAMPLES = """
  launch spec validate job.yaml           `job.yaml: ok`, or one line for each problem and exit code 2
  launch spec validate jobs/*.yaml        checks every file, even after one with problems
"""


class CheckedFile(msgspec.Struct, frozen=True):
    """A spec file, and the lines that are printed about its problems."""

    file: str
    ok: bool  # it has no problems
    problems: tuple[str, ...]


def declare(arguments: Arguments) -> None:
    """Declare the arguments of `launch spec validate`."""
    arguments.add_argument("files", metavar="FILE", nargs="+", help="a spec file")
    arguments.add_argument(
        "--set", metavar="KEY=VALUE", action="append", default=[], dest="overrides", help="check it with this override"
    )
    arguments.prints_json(lambda: {"": list[CheckedFile]}, "what is wrong with each, as JSON")


def run(options: argparse.Namespace) -> int:
    """Run `launch spec validate` and return its exit code."""
    show_news()
    found = [_checked(name, options.overrides, shown=not options.json) for name in options.files]
    if options.json:
        print(to_json(found))
    return Exit.OK if all(one.ok for one in found) else Exit.BAD_INPUT


def _checked(file: str, overrides: Sequence[str], *, shown: bool) -> CheckedFile:
    """Check a file and return its problems; with `shown`, print them."""
    try:
        if is_graph(file):
            validate_graph(file, overrides=overrides)
        else:
            api.validate(file, overrides=overrides)
    except BadInput as error:
        problems = tuple(map(safe, str(error).splitlines()))
        if shown:
            sys.stdout.flush()  # where both go to one place, in the order of the files
            print("\n".join(problems), file=sys.stderr)
        return CheckedFile(file, ok=False, problems=problems)
    if shown:
        print(f"{safe(file)}: ok")
    return CheckedFile(file, ok=True, problems=())
