"""`launch fetch`: copy what a run has written on other machines to this one."""

import argparse

import msgspec

from launcher import api
from launcher.cli.arguments import Arguments
from launcher.cli.looking.role_option import parts_of, takes_role
from launcher.cli.terminal import safe, show_news, to_json
from launcher.errors import Exit

EXAMPLES = """
  launch fetch last                       logs, metrics, the newest complete checkpoint and the best
  launch fetch resnet --checkpoint 1200   and the checkpoint of this step
  launch fetch last --checkpoint none     only logs and metrics; used again, it copies only what is new
  launch fetch last --role actors         also checkpoints of this role, if the run is of several programs
  launch fetch last --outputs             also files that the script wrote to relative paths
"""


class FetchedRun(msgspec.Struct, frozen=True):
    """The result of `launch fetch`: one line of text for each item that was copied to this machine."""

    run: str  # its id
    run_dir: str  # its folder
    fetched: tuple[str, ...]


def declare(arguments: Arguments) -> None:
    """Declare the arguments of `launch fetch`."""
    arguments.takes_run()
    arguments.add_argument(
        "--checkpoint",
        metavar="STEP",
        type=_which,
        default="newest",
        help="which checkpoint: newest (default), none, or a step",
    )

    takes_role(arguments)
    arguments.add_argument(
        "--outputs", action="store_true", help="also files that ranks wrote to relative paths; run.outputs limits them"
    )
    arguments.prints_json(lambda: {"": FetchedRun}, "what was brought, as JSON")


def run(options: argparse.Namespace) -> int:
    """Run `launch fetch` and return its exit code."""
    show_news()
    one = api.run(options.run)
    if options.role is not None:
        one.status()  # the roles are known once its hosts have told of them
    lines = [line for part in parts_of(one, options.role) for line in part.run.fetch(options.checkpoint)]
    outputs = one.fetch_outputs() if options.outputs else []
    if options.json:
        print(to_json(FetchedRun(one.id, str(one.path), (*lines, *outputs))))
        return Exit.OK
    for line in [*(lines or [f"everything of {one.id} is written here: {one.path}"]), *outputs]:
        print(safe(line))
    return Exit.OK


def _which(text: str) -> str:
    """Return the option's text if it names a checkpoint (`newest`, `none` or a step); raise ArgumentTypeError if
    not.
    """
    if text in ("newest", "none") or (text.isascii() and text.isdigit()):
        return text
    raise argparse.ArgumentTypeError(f"expected newest, none or a step such as 1200, got {text!r}")
