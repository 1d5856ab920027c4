"""`launch note`: show or set a run's note."""

import argparse

from launcher import api
from launcher.cli.arguments import Arguments
from launcher.cli.terminal import safe
from launcher.errors import BadInput, Exit

EXAMPLES = """
  launch note last "warm-up was too short"     replace the old note
  launch note last                             shows it
  launch note last ""                          takes it away
"""
_MOST = 10_000


def declare(arguments: Arguments) -> None:
    """Declare the arguments of `launch note`."""
    arguments.takes_run()
    arguments.add_argument("text", metavar="TEXT", nargs="?", help="the note")


def run(options: argparse.Namespace) -> int:
    """Run `launch note` and return its exit code."""
    said = api.run(options.run).label(note=checked_note(options.text))
    if said.note:
        print("\n".join(map(safe, said.note.splitlines())))
    return Exit.OK


def checked_note(text: str | None) -> str | None:
    """Return `text`, a note or None; raise BadInput if it has more than 10,000 characters."""
    if text is not None and len(text) > _MOST:
        raise BadInput(f"a note is at most {_MOST} characters long, this has {len(text)}")
    return text
