"""`launch nodes include`: let a run use nodes again that it excludes because it lost them."""

import argparse

import msgspec

from launcher import api
from launcher.cli.arguments import Arguments
from launcher.cli.terminal import safe, to_json
from launcher.errors import Exit, Refused
from launcher.run.records import Exclusion

EXAMPLES = """
  launch nodes include last            include all excluded nodes again
  launch nodes include resnet gpu07    only of this run
"""


class IncludedNodes(msgspec.Struct, frozen=True):
    """The exclusions of nodes that were removed, so that the run may use these nodes again."""

    run: str  # its id
    included: tuple[Exclusion, ...]


def declare(arguments: Arguments) -> None:
    """Declare the arguments of `launch nodes include`."""
    arguments.takes_run()
    arguments.add_argument("hosts", metavar="NODE", nargs="*", help="the nodes (default: all)")
    arguments.prints_json(lambda: {"": IncludedNodes}, "which may be used again, as JSON")


def run(options: argparse.Namespace) -> int:
    """Run `launch nodes include` and return its exit code."""
    one = api.run(options.run)
    taken_back = one.include_nodes(options.hosts)
    unknown = sorted(set(options.hosts) - {exclusion.host for exclusion in taken_back})
    if options.json:
        print(to_json(IncludedNodes(one.id, tuple(taken_back))))
    for exclusion in taken_back if not options.json else ():
        print(f"{safe(exclusion.host)} may be used again: {safe(exclusion.evidence)}")
    if unknown:
        raise Refused(f"{one.id} does not avoid {', '.join(map(safe, unknown))}", f"hint: launch status {one.id}")
    if not taken_back and not options.json:
        print(f"{one.id} avoids no node")
    return Exit.OK
