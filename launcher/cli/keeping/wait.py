"""`launch wait`: wait until runs have ended, and exit with their exit code."""

import argparse
import sys
import time
from collections.abc import Iterator, Sequence

from launcher import api
from launcher.cli.arguments import Arguments
from launcher.cli.graphs.members import graph_called, refuse_missing
from launcher.cli.looking.page import headline
from launcher.cli.looking.selection import chosen
from launcher.cli.terminal import safe, to_json
from launcher.errors import Exit, Refused
from launcher.status.derive import RunStatus, exit_code_of

EXAMPLES = """
  launch wait last && launch submit next.yaml     one after the other
  launch wait lr-4ykr lr-9x2d                     for all of them; the exit code of the first one that failed
  launch wait lr-4ykr lr-9x2d --any               until the first run has ended; prints its id
  launch wait resnet --timeout 60                 exit code 4 if it has not ended by then
  launch wait lr-4ykr lr-9x2d --any --json        the results of those that have ended, for programs
"""


def declare(arguments: Arguments) -> None:
    """Declare the arguments of `launch wait`."""
    arguments.takes_runs()
    arguments.add_argument("--any", action="store_true", help="return when the first run has ended, with its exit code")
    arguments.takes_timeout()
    arguments.prints_json(lambda: {"": list[RunStatus]}, "those that have ended, as `launch status` has them")


def run(options: argparse.Namespace) -> int:
    """Run `launch wait` and return its exit code."""
    for graph in filter(None, map(graph_called, options.runs)):
        refuse_missing(graph)
    runs, over = chosen(options.runs), list[RunStatus]()
    try:
        for status in _first(runs, options.timeout) if options.any else _each(runs, options.timeout):
            over.append(status)
            if not options.json:
                print(headline(status), flush=True)
            if status.next:
                print(f"next: {safe(status.next)}", file=sys.stderr)
    except TimeoutError as error:
        which = "" if options.any and len(runs) > 1 else f" {runs[len(over)].id}"
        raise Refused(str(error), f"hint: launch status{which}") from None
    finally:
        if options.json:
            print(to_json(over), flush=True)
    return next((code for code in map(exit_code_of, over) if code != Exit.OK), Exit.OK)


def _each(runs: Sequence[api.Run], timeout_s: float) -> Iterator[RunStatus]:
    """Wait for each run in turn, and yield its status once it has ended. If one has not ended `timeout_s` seconds after
    the wait for the first one began, raise TimeoutError, which names it.
    """
    end = time.monotonic() + timeout_s
    for one in runs:
        try:
            yield one.wait(max(0.0, end - time.monotonic()))
        except TimeoutError:
            raise TimeoutError(f"{one.id} is still {one.status().state} after {timeout_s:g} s") from None


def _first(runs: Sequence[api.Run], timeout_s: float) -> Iterator[RunStatus]:
    """Wait until at least one of the runs has ended, then yield the status of every run that has; raise TimeoutError if
    none does within `timeout_s`.
    """
    api.wait_any(runs, timeout_s)
    yield from (status for status in api.statuses(runs, api.WATCH_S) if status.state.ended)
