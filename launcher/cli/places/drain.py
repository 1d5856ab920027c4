"""`launch nodes drain`: move the ranks of a node to others, so that the node can be taken away."""

import argparse
import time

import msgspec

from launcher import api
from launcher.cli.arguments import Arguments
from launcher.cli.terminal import tell, to_json
from launcher.errors import Exit, Refused
from launcher.states import State

EXAMPLES = """
  launch nodes drain last 1                its ranks move to a spare node, and it is not used again
  launch nodes drain resnet gpu07          the node by the name of its machine, as `launch status` shows it
  launch nodes drain last 1 --timeout 60   exit code 4 if no other node could get them by then
"""


class DrainedNode(msgspec.Struct, frozen=True):
    """The result of a drain: the run, the index of the node that was drained, and `ranks_on`, the indices of the nodes
    that have the run's ranks after it.
    """

    run: str  # its id
    node: int
    ranks_on: tuple[int, ...]


def declare(arguments: Arguments) -> None:
    """Declare the arguments of `launch nodes drain`."""
    arguments.takes_run()
    arguments.add_argument("node", metavar="NODE", help="number of the node, or name of its machine")
    arguments.takes_timeout()
    arguments.prints_json(lambda: {"": DrainedNode}, "which nodes have the ranks now, as JSON")


def run(options: argparse.Namespace) -> int:
    """Run `launch nodes drain` and return its exit code."""
    one, end = api.run(options.run), time.monotonic() + options.timeout
    index, told = api.drain(one, options.node), False
    while True:
        status = one.status()
        if status.state.ended:
            raise Refused(f"{one.id} is {status.state}", f"hint: launch status {one.id}")
        node = next((node for node in status.nodes if node.node == index), None)
        # While ranks end everywhere, its own may have done so first, and nobody's have moved.
        if node is not None and node.state == "drained" and status.state is not State.REGROUPING:
            break
        if not told:
            tell(f"waits until other nodes can have the ranks of node {index}; it goes on without this command, too")
            told = True
        if time.monotonic() >= end:
            raise Refused(f"no other node could have the ranks of node {index} yet", f"hint: launch status {one.id}")
        time.sleep(api.WAIT_STEP_S)
    there = tuple(node.node for node in status.nodes if node.ranks)
    if options.json:
        print(to_json(DrainedNode(one.id, index, there)))
        return Exit.OK
    print(f"node {index} of {one.id} is drained; ranks run on node {', '.join(map(str, there))}")
    return Exit.OK
