"""Read the state of runs once for all open pages, and send each page the changes in what it shows, as server-sent
events. One such reading of all runs is a round; a thread makes one after the other. A Message is a pair: the name of
such an event, and its data.
"""

import asyncio
import contextlib
import logging
import threading
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import msgspec

from launcher import api
from launcher.apps.board.answers import Number, encode, numbers
from launcher.apps.board.life_view import validations
from launcher.apps.board.live.all_runs import AllRuns, RowChanges
from launcher.apps.board.live.logged_errors import logged_errors
from launcher.apps.board.log_view import BoardLine, board_line
from launcher.apps.board.measured.measured_runs import MeasuredRuns
from launcher.apps.board.rows import BoardRow, last_value
from launcher.apps.board.run_view import RunHead, checkpoint_words, hang_of, run_head
from launcher.apps.redacted import redacted
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

_LOOK_S = 0.5  # with open pages
_IDLE_S = 2.0  # without any
_DRAW_S = 0.15  # of each look, at most, for metrics that nobody has read yet
_ALIVE_S = 15.0  # a word so often, by which a page notices that we are gone
MOST_HELD_BYTES = 16 << 20  # for a page that takes nothing
_MOST_LINES = 500  # in one message: a page that is looked at needs no more in half a second
MOST_CHARACTERS = 1 << 20  # in all of them, unless one line has more

Message = tuple[str, Any]  # the name of what happened, and what is sent of it


class NewPoints(msgspec.Struct, frozen=True):
    """New points of one metric, as lists of steps, Unix times and values."""

    x: list[int]  # steps
    at: list[float]  # Unix times
    y: list[Number]  # values


class Rewind(msgspec.Struct, frozen=True):
    """The message that steps from `step` on are repeated after a restart, so that the page drops its points from
    there.
    """

    step: int


class NewLines(msgspec.Struct, frozen=True):
    """New lines of a run's log; `skipped` older ones have come at the same moment, and the page has to request them."""

    lines: list[BoardLine]
    skipped: int = 0  # older lines that came at the same moment; the page has to request them


class WatchedRun:
    """A run that some page shows. `look` finds what has changed since the last call; a page requests earlier data
    itself.
    """

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
        """Yield messages with what has changed since the last call: the data at the head of the run's page, new points
        of its metrics, marks for its timeline (checkpoints, validations and events), and new lines of its log.
        """
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
        """Return the part of the run's data that may change: its status, its row in the table of runs, its newest loss,
        its checkpoint, and the report on a hang. The report, which is large, is read again only if the run's message or
        last words have changed.
        """
        verdict = status.message, status.last_word
        if verdict != self._hang[0]:  # a report is large: it is read once for each verdict
            self._hang = verdict, hang_of(self.run, status)
        return run_head(status, row, self._checkpoint(status.checkpoint), self._last, self._hang[1])

    def _checkpoint(self, step: int | None) -> str:
        """Return a few words for the page about the checkpoint of a step, such as `step 120`, or "" for None. They are
        looked up again only if the step is another one than at the last call.
        """
        if step != self._saved[0]:
            self._saved = step, checkpoint_words(self.run, step)
        return self._saved[1]

    def _points(self) -> Iterator[Message]:
        """Yield one message with the points of all metrics that are new since the last call, if there are any, and then
        a mark for the page's timeline for each step of these at which a validation metric was reported.

        If a restart repeats steps whose points the page has, yield a Rewind first, at which it drops these points.
        """
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
        """Yield a mark on the timeline for each new event."""
        while data := self._events.read():
            *lines, self._rest = (self._rest + data).split(b"\n")
            yield from marks_of(event for line in lines if (event := record_in(line, Event)) is not None)


def _new_checkpoints(before: RunHead, now: RunHead) -> Iterator[LifeMark]:
    """Yield a mark for the page's timeline, dated now, if a newer checkpoint was saved or became safe (able to survive
    the loss of any one disk) since the state `before`.
    """
    found = {"checkpoint": (before.checkpoint, now.checkpoint), "safe": (before.safe_checkpoint, now.safe_checkpoint)}
    for kind, (old, step) in found.items():
        if step is not None and step != old:
            yield LifeMark(time.time(), kind, "", now.attempt, now.generation, step=step)


def newest_lines(lines: Iterable[LogLine]) -> NewLines:
    """Return the last of the lines, as many as one message may have, and how many were skipped."""
    kept, characters, skipped = deque[BoardLine](), 0, 0
    for line in map(board_line, lines):
        kept.append(line)
        characters += len(line.text)
        while len(kept) > _MOST_LINES or (characters > MOST_CHARACTERS and len(kept) > 1):
            characters -= len(kept.popleft().text)
            skipped += 1
    return NewLines([*kept], skipped)


def _as_points(points: list[tuple[int, float, float]]) -> NewPoints:
    """Return a metric's points, each (step, Unix time, value), as three lists: of steps, times and values."""
    return NewPoints([step for step, _, _ in points], [at for _, at, _ in points], numbers(y for _, _, y in points))


@dataclass(eq=False)
class OpenPage:
    """An open page: the run that it shows ("": the table of runs), and the messages to be sent to it. `changes` become
    one message at the end of a round; None among the `waiting` messages makes the page reload, as when too much waits
    (`is_behind`).
    """

    run_id: str
    wake: Callable[[], object] = lambda: None  # called when a message waits
    met: bool = False  # whether it has received the whole state of its run
    changes: list[bytes] = field(default_factory=list)  # found in the present round; sent as one message
    waiting: "deque[bytes | None]" = field(default_factory=deque)
    held: int = 0  # bytes of waiting messages
    is_behind: bool = False  # too much waits: it has to reload, and gets nothing else
    lock: threading.Lock = field(default_factory=threading.Lock)  # one thread puts messages, another takes them

    def send(self) -> None:
        """Queue the changes of the present round, if there are any, as one message to the page."""
        if self.changes:
            data, self.changes = b"".join(self.changes), []
            self.put(data)

    def put(self, data: bytes) -> None:
        """Queue data to be sent to the page.

        If more than `MOST_HELD_BYTES` would wait, everything is dropped and the page has to reload.
        """
        with self.lock:
            if self.is_behind:
                return
            self.is_behind = self.held > 0 and self.held + len(data) > MOST_HELD_BYTES
            if self.is_behind:
                self.waiting.clear()
            self.held += len(data)
            self.waiting.append(None if self.is_behind else data)
        self.wake()

    def dismiss(self) -> None:
        """Make the page reload, which ends its connection."""
        with self.lock:
            self.waiting.append(None)
        self.wake()

    def take(self) -> bytes | None:
        """Return the next message, b"" if none waits, or None if the page has to reload."""
        with self.lock:
            if not self.waiting:
                return b""
            data = self.waiting.popleft()
            self.held -= len(data or b"")
            return data


class Feed:
    """A thread that reads the state of all runs and queues the changes for open pages. `live` yields what is sent to
    one page.
    """

    def __init__(self, measured: MeasuredRuns) -> None:
        self.runs = AllRuns(measured)
        self._measured = measured
        self._pages: set[OpenPage] = set()
        self._watched: dict[str, WatchedRun] = {}
        self._wake = threading.Event()
        self._ends = False
        self._thread = threading.Thread(target=self._work, name="feed", daemon=True)

    def start(self) -> None:
        """Start the thread that reads runs."""
        self._thread.start()

    def close(self) -> None:
        """Stop the thread, and wait until it has ended."""
        self._ends = True
        self._wake.set()
        self._thread.join()
        self.runs.close()

    def dismiss(self) -> None:
        """Make all open pages reload, which ends their connections."""
        for page in list(self._pages):
            page.dismiss()

    async def live(self, run_id: str) -> AsyncIterator[bytes]:
        """Yield the events for a new page until it has to reload, as when too many bytes wait for it.

        `run_id` is the run that the page shows, or "" for the table.
        """
        loop, news = asyncio.get_running_loop(), asyncio.Event()
        page = OpenPage(run_id, lambda: loop.call_soon_threadsafe(news.set))
        self._pages.add(page)
        self._wake.set()
        try:
            yield _event("hello", {"at": time.time()})
            while True:
                news.clear()
                while data := page.take():
                    yield data
                if data is None:
                    return
                try:
                    async with asyncio.timeout(_ALIVE_S):
                        await news.wait()
                except TimeoutError:
                    yield b": still here\n\n"
        finally:
            self._pages.discard(page)

    def _work(self) -> None:
        """Read all runs again and again until the feed is closed; less often while no page is open."""
        while not self._ends:
            self._wake.clear()
            goes_on = False
            try:
                self._look()
                goes_on = not self.runs.complete
            except Exception:
                logging.getLogger(__name__).exception("a look at the runs failed; there is another one soon")
            self._wake.wait(0.0 if goes_on else _LOOK_S if self._pages else _IDLE_S)

    def _look(self) -> None:
        """Read all runs once, as one round, and queue the changes for all pages."""
        seen, drawn = self.runs.look(), self.runs.draw(time.monotonic() + _DRAW_S)
        pages = list(self._pages)  # now: who came meanwhile has asked for the rows of before
        try:
            self._send_rows(pages, seen, drawn)
            self._send_runs(pages)
        finally:
            for page in pages:
                page.send()

    def _send_runs(self, pages: list[OpenPage]) -> None:
        """Queue for each page the changes in the run that it shows."""
        wanted = {page.run_id for page in pages if page.run_id}
        self._watched = {run_id: one for run_id, one in self._watched.items() if run_id in wanted}
        for run_id in wanted:
            with logged_errors(run_id):
                self._send_run(run_id, [page for page in pages if page.run_id == run_id])

    def _send_run(self, run_id: str, pages: list[OpenPage]) -> None:
        """Queue the changes in one run, without secrets, for the pages that show it; a new page gets its whole state
        first.
        """
        secrets = self.runs.secrets(run_id)
        for name, what in self._messages_about(run_id):
            data = _event(name, redacted(what, secrets))
            for page in pages:
                page.met = page.met or name == "head"
                page.changes.append(data)
        watched = self._watched.get(run_id)
        for page in pages:
            if not page.met and watched is not None and watched.head is not None:
                page.met = True
                page.changes.append(_event("head", redacted(watched.head, secrets)))

    def _send_rows(self, pages: list[OpenPage], seen: RowChanges, drawn: RowChanges) -> None:
        """Queue the changed rows of the table, and the ids of deleted runs, for every page.

        `seen` are the changes that a round has found in runs' records, and `drawn` the rows that then got a new curve.
        If a run is in both, its later row, that in `drawn`, is sent.
        """
        rows = {row.id: row for changes in (seen, drawn) for row in changes.runs}
        if (rows or seen.gone) and pages:
            data = _event("runs", RowChanges([*rows.values()], seen.gone))
            for page in pages:
                page.changes.append(data)

    def _messages_about(self, run_id: str) -> Iterator[Message]:
        """Yield a message for each change in one run since the last round; nothing for an unknown run.

        Files that its ranks wrote on other machines are fetched in the background.
        """
        status, row = self.runs.status(run_id), self.runs.rows.get(run_id)
        if status is None or row is None:
            return
        self.runs.fetch_files(run_id)
        if run_id not in self._watched:
            self._watched[run_id] = WatchedRun(api.run(run_id), self._measured)
        with contextlib.suppress(OSError):  # its folder may be taken away meanwhile
            yield from self._watched[run_id].look(status, row)


def _event(name: str, what: object) -> bytes:
    """Return the bytes of a server-sent event called `name`, whose data is `what` as JSON."""
    return b"event: " + name.encode() + b"\ndata: " + encode(what) + b"\n\n"
