"""`launch du`: show how much disk space runs take, here and on other machines."""

import argparse
import sys
from collections.abc import Sequence

import msgspec

from launcher import api
from launcher.cli import figures
from launcher.cli.arguments import RUN_HELP, Arguments
from launcher.cli.looking.selection import existing_runs, runs_like, runs_named
from launcher.cli.terminal import columns, fitting, paint, safe, to_json, width_of
from launcher.errors import Exit
from launcher.places.elsewhere import kept_elsewhere
from launcher.places.place import KeptRemote
from launcher.run.layout import RunDir
from launcher.run.removal import Usage, size_of, unused_code

EXAMPLES = """
  launch du                  every run, the largest first, and what could be deleted without a loss
  launch du --sort logs      sort by the largest value
  launch du resnet --json    of this one, in bytes
  launch du --here           only of this machine: no cluster is asked
"""
_HEAD = ("RUN", "STATE", "TOTAL", "CHECKPOINTS", "LOGS", "CODE")
_SORTS = ("total", "checkpoints", "logs", "code", "run")
_LESS = ("CODE", "LOGS", "CHECKPOINTS", "STATE")  # what goes first where a terminal is too narrow


class KeptElsewhere(msgspec.Struct, frozen=True):
    """How many bytes of a run another machine stores; if it did not answer, `total` is None and `silent` the reason."""

    on: str  # the machine
    total: int | None
    silent: str


class RunUsage(msgspec.Struct, frozen=True):
    """The disk space that a run takes on this machine, in bytes, and on others (`elsewhere`)."""

    run: str  # its id
    total: int  # of the run's folder, the next three included, except checkpoints that are outside it
    checkpoints: int
    logs: int
    code: int  # of the run's own copy
    elsewhere: tuple[KeptElsewhere, ...]


def declare(arguments: Arguments) -> None:
    """Declare the arguments of `launch du`."""
    arguments.add_argument("runs", metavar="RUN", nargs="*", help=f"{RUN_HELP}; without one, all")
    arguments.add_argument(
        "--name", metavar="GLOB", action="append", help="runs whose id, job or name matches this pattern"
    )
    arguments.add_argument("--sort", metavar="NAME", choices=_SORTS, default="total", help=f"by {', '.join(_SORTS)}")
    arguments.prints_json(lambda: {"": list[RunUsage]}, "in bytes, for programs")
    arguments.add_argument("--here", action="store_true", help="count only this machine")


def run(options: argparse.Namespace) -> int:
    """Run `launch du` and return its exit code."""
    chosen = runs_like(options.runs) if options.runs else runs_named(options.name) if options.name else existing_runs()
    measured = [(one, one.usage()) for one in chosen]
    if options.sort == "run":
        measured.sort(key=lambda pair: pair[0].id)
    else:
        measured.sort(key=lambda pair: _plain(pair[1])[options.sort], reverse=True)
    there = [] if options.here else kept_elsewhere([RunDir(one.path) for one in chosen])
    if options.json:
        print(
            to_json(
                [RunUsage(one.id, **_plain(usage), elsewhere=_kept_elsewhere(one, there)) for one, usage in measured]
            )
        )
        return Exit.OK
    states = {status.run: str(status.state) for status in api.statuses(chosen)}
    rows = [
        (safe(one.id), states.get(one.id, "-"), *map(figures.size, _plain(usage).values())) for one, usage in measured
    ]
    lines = fitting([_HEAD, *rows], _LESS, width_of(sys.stdout))
    print("\n".join([paint(lines[0], "dim"), *lines[1:]]))
    if not (options.runs or options.name):
        unused = unused_code({one.path.parent for one in chosen})
        total = sum(usage.total for _, usage in measured)
        print(f"{figures.count(len(chosen), 'run')}, {figures.size(total)}", end="")
        print(f"; {figures.size(sum(map(size_of, unused)))} of code that no run needs" if unused else "")
    _show_there(there)
    return Exit.OK


def _show_there(there: Sequence[KeptRemote]) -> None:
    """Print what other machines store of the runs, the largest first, and which machines did not answer."""
    kept = [(size, run, one.where) for one in there if not one.silent for run, size in one.runs.items()]
    if kept:
        rows = [(safe(run), safe(where), figures.size(size)) for size, run, where in sorted(kept, reverse=True)]
        lines = columns([("RUN", "ON", "TOTAL"), *rows])
        print("\n".join(["", paint(lines[0], "dim"), *lines[1:]]))
    for where, why in dict.fromkeys((one.where, one.silent) for one in there if one.silent):
        print(f"{safe(where)} was not asked: {safe(why)}", file=sys.stderr)


def _kept_elsewhere(one: api.Run, there: Sequence[KeptRemote]) -> tuple[KeptElsewhere, ...]:
    """Return what each other machine stores of the run, from `there`, the machines' reports about several runs."""
    kept = [machine for machine in there if one.id in machine.runs]
    return tuple(KeptElsewhere(on.where, None if on.silent else on.runs[one.id], on.silent) for on in kept)


def _plain(usage: Usage) -> dict[str, int]:
    """Return {column: bytes} of the usage, in the order of the table's columns: total, checkpoints, logs, code."""
    return {"total": usage.total, "checkpoints": usage.checkpoints, "logs": usage.logs, "code": usage.code}
