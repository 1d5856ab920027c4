"""`launch debug`: connect to the debugger of a rank that waits in a `breakpoint()`."""

import argparse

from launcher import api
from launcher.cli.arguments import Arguments
from launcher.cli.inside.exec import node_of, takes_rank
from launcher.cli.inside.session import converse
from launcher.cli.looking.role_option import only_part_of
from launcher.node.inside.visit_messages import AttachDebugger

EXAMPLES = """
  launch debug last              attach to rank 0, which waits in a breakpoint() of its code
  launch debug resnet --rank 3

A rank that comes to a breakpoint() waits, for as long as it takes, and `launch status` says where; so the others wait
too, and none of them counts as hung. It is pdb: `c` goes on, to the next breakpoint(), `q` ends the rank by an error.
Ctrl-C stops it where it is now. Ctrl-D at a prompt leaves it there: attach again; Ctrl-\\ leaves at any time. No port
is opened: it is a socket of yours in the run's folder. PYTHONBREAKPOINT in `env:` of the spec chooses something else,
0 to pass over all.
"""


def declare(arguments: Arguments) -> None:
    """Declare the arguments of `launch debug`."""
    arguments.takes_run()
    takes_rank(arguments)


def run(options: argparse.Namespace) -> int:
    """Run `launch debug` and return its exit code."""
    one, rank = only_part_of(api.run(options.run), options.role, options.rank)
    with one.visit(node_of(one, rank)) as visit:
        return converse(visit, AttachDebugger(rank), None)
