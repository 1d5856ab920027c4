"""`launch rename`: give a run a name, which can be used like its id."""

import argparse

from launcher import api
from launcher.cli.arguments import Arguments
from launcher.errors import BadInput, Exit, NoSuchRun
from launcher.ids import LAST, is_run_id

EXAMPLES = """
  launch rename resnet-4ykr baseline     `launch logs baseline` shows its log from now on
  launch rename resnet-4ykr ""           takes the name away
"""


def declare(arguments: Arguments) -> None:
    """Declare the arguments of `launch rename`."""
    arguments.takes_run()
    arguments.add_argument("name", metavar="NAME", help="the new name, of a-z, 0-9, _ and -")


def run(options: argparse.Namespace) -> int:
    """Run `launch rename` and return its exit code."""
    one = api.run(options.run)
    name = checked_name(one, options.name)
    one.label(name=name)
    print(f"{one.id} is called {name}" if name else f"{one.id} has no name but its id")
    return Exit.OK


def checked_name(one: api.Run, name: str | None) -> str | None:
    """Return `name` unchanged, as a new name for the run `one`. Raise BadInput unless it consists of a-z, 0-9, _ and -
    as ids do, if it is `last`, or if another run has it as id or name. None and "" are accepted.
    """
    if name and (name == LAST or not is_run_id(name)):
        raise BadInput(f"expected a name of a-z, 0-9, _ and -, got {name[:100]!r}")
    if name and (other := _known(name)) is not None and other.id != one.id:
        raise BadInput(
            f"{name}: is what {other.id} answers to", "hint: another name, or another one for that run first"
        )
    return name


def _known(name: str) -> "api.Run | None":
    """Return the run with this name or id, or None if there is none."""
    try:
        return api.run(name)
    except NoSuchRun:
        return None
