"""`launch exec`: run a command on a rank's node, beside the rank."""

import argparse
import os

from launcher import api
from launcher.cli.arguments import Arguments
from launcher.cli.inside.session import converse, window_here
from launcher.cli.looking.role_option import only_part_of, takes_role
from launcher.errors import BadInput, Refused
from launcher.node.inside.visit_messages import RunCommand

EXAMPLES = """
  launch exec last -- nvidia-smi                  on the node of rank 0
  launch exec last --rank 3 -- env                what rank 3 has in its environment
  launch exec last --role actors -- env           rank 0 of this role, of a run of several programs
  launch exec resnet -- sh -c 'ls $LAUNCH_CHECKPOINT_DIR'
  launch exec last -- du -sh .                    in the folder where the rank is now
  launch exec last -- cat data.bin >copy.bin      a pipe or a file here is one for the command, too

The exit code is the command's, 128 + n where signal n ended it, 127 where there is no such program. From a terminal it
has a terminal there: Ctrl-C is the command's. It ends with this command, with the connection, and with the run.
"""


def declare(arguments: Arguments) -> None:
    """Declare the arguments of `launch exec`."""
    arguments.takes_run()
    takes_rank(arguments)
    arguments.takes_command()


def run(options: argparse.Namespace) -> int:
    """Run `launch exec` and return its exit code."""
    if not options.command:
        hint = f"hint: launch exec {options.run} -- nvidia-smi; `launch shell {options.run}` opens a shell"
        raise BadInput("expected a command behind --", hint)
    return run_beside_rank(options, options.command)


def takes_rank(arguments: Arguments) -> None:
    """Declare the options --rank and --role."""
    arguments.add_argument("--rank", metavar="N", type=_rank, default=0, help="the rank (default: 0)")
    takes_role(arguments)


def run_beside_rank(options: argparse.Namespace, argv: "list[str]") -> int:
    """Run a command on the node, and in the environment, of the rank that the options name; return the command's exit
    code. Raise Refused if the rank does not run.
    """
    one, rank = only_part_of(api.run(options.run), options.role, options.rank)
    window = window_here()
    with one.visit(node_of(one, rank)) as visit:
        return converse(visit, RunCommand(rank, tuple(map(os.fsencode, argv)), window), window)


def node_of(one: api.Run, rank: int) -> int:
    """Return the index of the node on which a rank runs now; raise Refused if the rank does not run."""
    nodes = one.nodes_of_ranks()
    if rank not in nodes:
        raise Refused(f"{one.id} has no rank {rank} that runs: expected one of {_few(sorted(nodes))}")
    return nodes[rank]


def _few(numbers: "list[int]") -> str:
    """Return sorted numbers as text: consecutive ones as `0 to 3`, others one by one, as in `0, 2`."""
    whole = numbers == [*range(numbers[0], numbers[-1] + 1)] and len(numbers) > 1
    return f"{numbers[0]} to {numbers[-1]}" if whole else ", ".join(map(str, numbers))


def _rank(text: str) -> int:
    """Return the rank in an option's text; raise ArgumentTypeError for any other text."""
    if not (text.isascii() and text.isdigit() and len(text) <= 7):
        raise argparse.ArgumentTypeError(f"expected the number of a rank, got {text!r}")
    return int(text)
