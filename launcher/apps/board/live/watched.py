"""One run that a page shows: what is new in its metrics, log and events since the last look."""

import time
from collections import deque
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

import msgspec

from launcher import api
from launcher.apps.board.answers import Number, numbers
from launcher.apps.board.life_view import validations
from launcher.apps.board.log_view import BoardLine, board_line
from launcher.apps.board.measured.measured_runs import MeasuredRuns
from launcher.apps.board.rows import BoardRow, last_value
from launcher.apps.board.run_view import RunHead, checkpoint_words, hang_of, run_head
from launcher.run.durable import record_in
from launcher.run.layout import RunDir
from launcher.run.records import Event
from launcher.status.derive import RunStatus
from launcher.status.life import LifeMark, marks_of
from launcher.status.log_choice import LogChoice
from launcher.status.logs import LogLine, LogReader
from launcher.status.rank_log import GrowingFile

if TYPE_CHECKING:
    from launcher.run.hangs import HangReport

_MOST_LINES = 500  # in one message: a page that is looked at needs no more in half a second
MOST_CHARACTERS = 1 << 20  # in all of them, unless one line has more

Message = tuple[str, Any]  # the name of what happened, and what is sent of it


class NewPoints(msgspec.Struct, frozen=True):
    """New points of one metric: steps, times and values."""

    x: list[int]
    at: list[float]
    y: list[Number]


class Rewind(msgspec.Struct, frozen=True):
    """A start repeats steps: the page drops its points from this step on."""

    step: int


class NewLines(msgspec.Struct, frozen=True):
    """New lines of the run's log."""

    lines: list[BoardLine]
    skipped: int = 0  # older ones that came in the same moment and are to be asked for


class WatchedRun:
    """Finds what is new of one run since the object was made; a page requests earlier data itself."""

    def __init__(self, one: api.Run, measured: MeasuredRuns) -> None:
        self.run = one
        self._measured = measured
        self.head: RunHead | None = None
        self._saved: tuple[int | None, str] = None, ""
        self._hang: tuple[tuple[str, str], HangReport | None] = ("", ""), None
        with measured.renewed(one) as numbers_:
            self._step, self._rewinds = numbers_.last(), len(numbers_.rewinds)
            self._last = last_value(numbers_)
        at = RunDir(one.path)
        self._log = LogReader(at, choice=LogChoice(since=time.time()))
        deque(self._log.read(final=False), 0)  # what nobody has noted the time of
        self._events = GrowingFile(at.events, at.events.stat().st_size if at.events.exists() else 0)
        self._rest = b""

    def look(self, status: RunStatus, row: BoardRow) -> Iterator[Message]:
        """Yield a message for everything that is new."""
        points = [*self._points()]  # first: what they end with is in the head
        head, before = self._head(status, row), self.head
        if head != before:
            self.head = head
            yield "head", head
        yield from points
        if before is not None:
            yield from (("mark", mark) for mark in _new_checkpoints(before, head))
        yield from (("mark", mark) for mark in self._marks())
        new = newest_lines(self._log.read(final=False))
        if new.lines:
            yield "log", new

    def _head(self, status: RunStatus, row: BoardRow) -> RunHead:
        """Return the changing part of the run's data."""
        verdict = status.message, status.last_word
        if verdict != self._hang[0]:  # a report is large: it is read once for each verdict
            self._hang = verdict, hang_of(self.run, status)
        return run_head(status, row, self._checkpoint(status.checkpoint), self._last, self._hang[1])

    def _checkpoint(self, step: int | None) -> str:
        """Return the description of a checkpoint, looked up once for each step."""
        if step != self._saved[0]:
            self._saved = step, checkpoint_words(self.run, step)
        return self._saved[1]

    def _points(self) -> Iterator[Message]:
        """Yield the new points of each metric, after a rewind if steps are being repeated."""
        with self._measured.renewed(self.run) as measured:
            void = min(measured.rewinds[self._rewinds :], default=self._step + 1)
            self._rewinds = len(measured.rewinds)
            if void <= self._step:
                self._step = void - 1
                yield "rewind", Rewind(void)
            found = {name: measured.since(name, self._step) for name in measured.names}
            self._step, self._last = measured.last(), last_value(measured)
        new = {name: points for name, points in found.items() if points}
        if new:
            yield "points", {name: _as_points(points) for name, points in new.items()}
            yield from (("mark", mark) for mark in validations(new))

    def _marks(self) -> Iterator[LifeMark]:
        """Yield marks for new events."""
        while data := self._events.read():
            *lines, self._rest = (self._rest + data).split(b"\n")
            yield from marks_of(event for line in lines if (event := record_in(line, Event)) is not None)


def _new_checkpoints(before: RunHead, now: RunHead) -> Iterator[LifeMark]:
    """Yield a mark, dated now, for a checkpoint that was just saved or just became safe."""
    found = {"checkpoint": (before.checkpoint, now.checkpoint), "safe": (before.safe_checkpoint, now.safe_checkpoint)}
    for kind, (old, step) in found.items():
        if step is not None and step != old:
            yield LifeMark(time.time(), kind, "", now.attempt, now.generation, step=step)


def newest_lines(lines: Iterable[LogLine]) -> NewLines:
    """Return the newest lines, in bounded memory however much was written since the last call."""
    kept, characters, skipped = deque[BoardLine](), 0, 0
    for line in map(board_line, lines):
        kept.append(line)
        characters += len(line.text)
        while len(kept) > _MOST_LINES or (characters > MOST_CHARACTERS and len(kept) > 1):
            characters -= len(kept.popleft().text)
            skipped += 1
    return NewLines([*kept], skipped)


def _as_points(points: list[tuple[int, float, float]]) -> NewPoints:
    """Return the points as three lists."""
    return NewPoints([step for step, _, _ in points], [at for _, at, _ in points], numbers(y for _, _, y in points))
