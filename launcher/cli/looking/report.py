"""`launch report`: write a page about some runs to a file: curves, differences, environment, notes."""

import argparse
import sys
from pathlib import Path

import msgspec

from launcher.cli.arguments import Arguments
from launcher.cli.looking.selection import runs_like
from launcher.cli.terminal import safe, to_json
from launcher.errors import Exit

EXAMPLES = """
  launch report last                        writes report.html: one file, which opens from disk without a network
  launch report lr1 lr2 -o compared.html    begins with what differs between them, and their curves
  launch report 'lr-*'                      runs by a pattern; quote it from the shell

It is the page of `launch board --export` as one file: curves, life, tables, environment and the last part of the logs
as they are now. Values of `secrets:`, addresses of `notify:` and what is set for names such as API_KEY or --token are
redacted; read it before you send it: what else a script prints stays.
"""


class WrittenReport(msgspec.Struct, frozen=True):
    """The page that `launch report` wrote, and the runs on it."""

    file: str
    runs: tuple[str, ...]  # their ids


def declare(arguments: Arguments) -> None:
    """Declare the arguments of `launch report`."""
    arguments.takes_runs(patterns=True)
    arguments.add_argument(
        "-o", "--output", metavar="FILE", type=Path, default=Path("report.html"), help="the file (default: report.html)"
    )
    arguments.prints_json(lambda: {"": WrittenReport}, "what was written, as JSON")


def run(options: argparse.Namespace) -> int:
    """Run `launch report` and return its exit code."""
    from launcher.apps.board.export import export_report  # late: the help does without

    runs = runs_like(options.runs)
    file = export_report(runs, options.output)
    if options.json:
        print(to_json(WrittenReport(str(file), tuple(one.id for one in runs))))
        return Exit.OK
    print(safe(str(file)))
    print("open it in a browser", file=sys.stderr)
    return Exit.OK
