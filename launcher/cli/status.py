"""`launch status`: the table of runs, or the page of one."""

import argparse
import sys
import time
from collections.abc import Callable

import msgspec

from launcher import api
from launcher.cli.arguments import Arguments
from launcher.cli.page import page
from launcher.cli.run_table import Table, table
from launcher.cli.screen import Screen
from launcher.cli.terminal import is_terminal
from launcher.errors import BadInput, Exit
from launcher.status.derive import RunStatus
from launcher.words import State

EXAMPLES = """
  launch status                  what is running, and the newest runs of any folder
  launch status last             everything about the newest run
  launch status resnet --watch   the same, drawn anew each second until it ends
  launch status --json           all of it, for programs
"""
_WATCH_S = 1.0


def declare(arguments: Arguments) -> None:
    arguments.takes_run(nargs="?")
    arguments.add_argument("--json", action="store_true", help="everything that is known, as JSON")
    arguments.add_argument("--watch", action="store_true", help="draw it anew each second until the run has ended")
    arguments.add_argument("--all", action="store_true", help="all runs, not only the active and the newest")


def run(options: argparse.Namespace) -> int:
    if options.watch:
        if options.json or not is_terminal(sys.stdout):
            raise BadInput("--watch draws on a terminal", "hint: `launch wait RUN` waits, `launch logs RUN -f` follows")
        return _watch(options)
    if options.run is not None:
        status = api.run(options.run).status()
        print(_json(status) if options.json else "\n".join(page(status, time.time())))
        return Exit.OK
    statuses = _newest_first()
    if options.json:
        print(_json(statuses))
        return Exit.OK
    shown = _table(options, statuses)
    if shown.lines:
        print("\n".join(shown.lines))
    if shown.note:
        print(shown.note, file=sys.stderr)
    return Exit.OK


def _newest_first(fresh_s: float = 0.0) -> list[RunStatus]:
    """All runs whose folder is there."""
    statuses = api.statuses(api.runs(), fresh_s)
    there = [status for status in statuses if status.state is not State.UNKNOWN or _is_there(status)]
    return sorted(there, key=lambda status: (status.submitted_at, status.run), reverse=True)


def _is_there(status: RunStatus) -> bool:
    return status.submitted_at > 0


def _table(options: argparse.Namespace, statuses: list[RunStatus]) -> Table:
    return table(statuses, time.time(), everything=options.all)


def _watch(options: argparse.Namespace) -> int:
    screen = Screen(sys.stdout)
    if options.run is None:
        return _redraw(screen, lambda: _whole_table(options))
    one = api.run(options.run)
    return _redraw(screen, lambda: _whole_page(one.status(api.WATCH_S)))


def _redraw(screen: Screen, draw: Callable[[], tuple[list[str], bool]]) -> int:
    while True:
        lines, ended = draw()
        screen.show(lines, last=ended)
        if ended:
            return Exit.OK
        time.sleep(_WATCH_S)


def _whole_table(options: argparse.Namespace) -> tuple[list[str], bool]:
    statuses = _newest_first(api.WATCH_S)
    shown = _table(options, statuses)
    notes = [shown.note] if shown.note else []
    return [*shown.lines, *notes], all(status.state.ended for status in statuses)


def _whole_page(status: RunStatus) -> tuple[list[str], bool]:
    return page(status, time.time()), status.state.ended


def _json(value: RunStatus | list[RunStatus]) -> str:
    return msgspec.json.format(msgspec.json.encode(value), indent=2).decode()
