"""`launch nodes move`: move the ranks of a node to a spare; the node stays in use as a spare."""

import argparse
import time

import msgspec

from launcher import api
from launcher.cli.arguments import Arguments
from launcher.cli.terminal import to_json
from launcher.errors import Exit, Refused
from launcher.run.records import MOVED

EXAMPLES = """
  launch nodes move last 1                    its ranks move to a spare node, and it becomes a spare
  launch nodes move resnet gpu07 --to gpu12   nodes by the names of their machines, as `launch status` shows them
"""


class MovedNode(msgspec.Struct, frozen=True):
    """A node that has become a spare; `moved` describes the ranks that were moved off it."""

    run: str  # its id
    node: int  # its number
    moved: str


def declare(arguments: Arguments) -> None:
    """Declare the arguments of `launch nodes move`."""
    arguments.takes_run()
    arguments.add_argument("node", metavar="NODE", help="number of the node, or name of its machine")
    arguments.add_argument("--to", metavar="SPARE", help="the spare that gets the ranks (default: any that is ready)")
    arguments.takes_timeout()
    arguments.prints_json(lambda: {"": MovedNode}, "what has moved, as JSON")


def run(options: argparse.Namespace) -> int:
    """Run `launch nodes move` and return its exit code."""
    one, end = api.run(options.run), time.monotonic() + options.timeout
    moving = api.move(one, options.node, options.to)
    hint = f"hint: launch status {one.id}"
    while (answer := moving.answer()) is None:
        status = one.status()
        if status.state.ended:
            raise Refused(f"{one.id} is {status.state}", hint)
        if time.monotonic() >= end:
            raise Refused(f"the ranks of node {moving.node} have not moved yet; they may still do so", hint)
        time.sleep(api.WAIT_STEP_S)
    if answer.kind != MOVED:
        raise Refused(f"{one.id}: {answer.text}", hint)
    print(to_json(MovedNode(one.id, moving.node, answer.text)) if options.json else f"{one.id}: {answer.text}")
    return Exit.OK
