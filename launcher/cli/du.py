"""`launch du`: what runs take of the disk."""

import argparse
import sys

from launcher import api
from launcher.cli import figures
from launcher.cli.arguments import RUN_HELP, Arguments
from launcher.cli.terminal import fitting, paint, safe, to_json, width_of
from launcher.errors import Exit
from launcher.rundir.removal import Usage, size_of, unused_code

EXAMPLES = """
  launch du                  every run, the largest first, and what could go without a loss
  launch du resnet --json    of this one, in bytes
"""
_HEAD = ("RUN", "STATE", "TOTAL", "CHECKPOINTS", "LOGS", "CODE")
_LESS = ("CODE", "LOGS", "CHECKPOINTS", "STATE")  # what goes first where a terminal is too narrow


def declare(arguments: Arguments) -> None:
    arguments.add_argument("runs", metavar="RUN", nargs="*", help=f"{RUN_HELP}; without one, all")
    arguments.add_argument("--json", action="store_true", help="in bytes, for programs")


def run(options: argparse.Namespace) -> int:
    chosen = [api.run(ref) for ref in options.runs] or [one for one in api.runs() if one.path.is_dir()]
    measured = sorted(((one, one.usage()) for one in chosen), key=lambda pair: -pair[1].total)
    if options.json:
        print(to_json([{"run": one.id, **_plain(usage)} for one, usage in measured]))
        return Exit.OK
    states = {status.run: str(status.state) for status in api.statuses(chosen)}
    rows = [
        (safe(one.id), states.get(one.id, "-"), *map(figures.size, _plain(usage).values())) for one, usage in measured
    ]
    lines = fitting([_HEAD, *rows], _LESS, width_of(sys.stdout))
    print("\n".join([paint(lines[0], "dim"), *lines[1:]]))
    if not options.runs:
        unused = unused_code({one.path.parent for one in chosen})
        total = sum(usage.total for _, usage in measured)
        print(f"{figures.count(len(chosen), 'run')}, {figures.size(total)}", end="")
        print(f"; {figures.size(sum(map(size_of, unused)))} of code that no run needs" if unused else "")
    return Exit.OK


def _plain(usage: Usage) -> dict[str, int]:
    return {"total": usage.total, "checkpoints": usage.checkpoints, "logs": usage.logs, "code": usage.code}
