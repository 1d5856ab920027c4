"""Lines of a run's merged log, page by page, beginning with the last lines. They are from ranks, or from a node's
setup: the shell code that runs first there. A generation is one start of all ranks within an attempt.
"""

import re
from collections import deque
from collections.abc import Iterator
from itertools import islice

import msgspec

from launcher import api
from launcher.run.layout import RunDir
from launcher.status.log_choice import LogChoice
from launcher.status.logs import LogLine, LogReader
from launcher.status.text import plain

MOST_LINES = 5000
_AROUND_S = 30.0  # before a failure


class BoardLine(msgspec.Struct, frozen=True):
    """A line of the log as the page shows it; `at` is its Unix time, and `node` and `rank` are None if not known or for
    setup.
    """

    at: float | None
    attempt: int
    generation: int
    node: int | None
    rank: int | None
    text: str


class LogRequest(msgspec.Struct, frozen=True):
    """A request for up to `limit` lines of a log, among the lines of `ranks` that contain `search`.

    If `around` is given, they are the first ones from shortly before that time on. Otherwise they are the last ones,
    without the `before` lines at the end.
    """

    ranks: frozenset[int] | None = None  # None: all
    search: str = ""  # in any case of letters; "": all lines
    before: int = 0  # how many of the last lines to leave out, because the page has them
    around: float | None = None  # a Unix time: the lines from shortly before it on; None: the last lines
    limit: int = 500  # how many lines at most


class LogPage(msgspec.Struct, frozen=True):
    """The answer to a LogRequest: some lines of a log, oldest first. To get the lines before them, send the request
    again with this `before`.
    """

    lines: list[BoardLine]
    before: str | None  # a number of lines, as text; None: no lines are before these, or `around` was in the request


def log_page(one: api.Run, wish: LogRequest) -> LogPage:
    """Return the lines that `wish` asks for, from the end of the log or around a time, as far as this machine has them.

    The page also tells what to request for the lines before them, unless they are around a time.
    """
    limit = max(1, min(wish.limit, MOST_LINES))
    pattern = re.compile(re.escape(wish.search), re.IGNORECASE) if wish.search else None
    if wish.around is not None:
        lines = _read(one, LogChoice(wish.ranks, since=wish.around - _AROUND_S, pattern=pattern))
        return LogPage([board_line(line) for line in islice(lines, limit)], None)
    wanted = wish.before + limit
    found = deque(_read(one, LogChoice(wish.ranks, pattern=pattern, last=wanted + 1)), wanted + 1)
    more = len(found) > wanted
    end = max(0, len(found) - wish.before)
    lines_ = [board_line(line) for line in islice(found, max(0, end - limit), end)]
    return LogPage(lines_, str(wanted) if more else None)


def _read(one: api.Run, choice: LogChoice) -> Iterator[LogLine]:
    """Yield the lines of the run's log that `choice` selects, in the log's order, as far as it is written."""
    return LogReader(RunDir(one.path), choice=choice).read(final=True)


def board_line(line: LogLine) -> BoardLine:
    """Return the line for the page, its text without terminal control sequences."""
    return BoardLine(line.at, line.attempt, line.generation, line.node, line.rank, plain(line.text))
