"""`launch nodes include`: let a run use nodes again that it avoids because it lost them."""

import argparse

from launcher import api
from launcher.cli.arguments import Arguments
from launcher.cli.terminal import safe
from launcher.errors import Exit, Refused

EXAMPLES = """
  launch nodes include last            whatever was held against nodes is forgotten
  launch nodes include resnet gpu07    of this one alone
"""


def declare(arguments: Arguments) -> None:
    arguments.takes_run()
    arguments.add_argument("hosts", metavar="NODE", nargs="*", help="these nodes; without one, all")


def run(options: argparse.Namespace) -> int:
    one = api.run(options.run)
    taken_back = one.pardon(options.hosts)
    unknown = sorted(set(options.hosts) - {blame.host for blame in taken_back})
    for blame in taken_back:
        print(f"{safe(blame.host)} may be used again: {safe(blame.evidence)}")
    if unknown:
        raise Refused(f"{one.id} does not avoid {', '.join(map(safe, unknown))}", f"hint: launch status {one.id}")
    if not taken_back:
        print(f"{one.id} avoids no node")
    return Exit.OK
