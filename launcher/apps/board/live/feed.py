"""Read the state of runs once for all open pages, and send each page the changes of what it shows."""

import asyncio
import contextlib
import logging
import threading
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass, field

from launcher import api
from launcher.apps.board.answers import encode
from launcher.apps.board.live.all_runs import AllRuns, RowChanges
from launcher.apps.board.live.logged_errors import logged_errors
from launcher.apps.board.live.watched import Message, WatchedRun
from launcher.apps.board.measured.measured_runs import MeasuredRuns
from launcher.apps.redacted import redacted

_LOOK_S = 0.5  # with open pages
_IDLE_S = 2.0  # without any
_DRAW_S = 0.15  # of each look, at most, for metrics that nobody has read yet
_ALIVE_S = 15.0  # a word so often, by which a page notices that we are gone
MOST_HELD_BYTES = 16 << 20  # for a page that takes nothing


@dataclass(eq=False)
class OpenPage:
    """An open page: the run that it shows, and the messages still to be sent to it, or None if it must reload."""

    run_id: str
    wake: Callable[[], object] = lambda: None  # called when there is something to take
    met: bool = False  # whether it has received the state of its run
    changes: list[bytes] = field(default_factory=list)  # found in the present look, sent as one message
    waiting: "deque[bytes | None]" = field(default_factory=deque)
    held: int = 0  # bytes that wait
    is_behind: bool = False  # too many wait: it must reload, and gets nothing before
    lock: threading.Lock = field(default_factory=threading.Lock)  # one thread puts, another takes

    def send(self) -> None:
        """Send all messages that wait in this page's queue."""
        if self.changes:
            data, self.changes = b"".join(self.changes), []
            self.put(data)

    def put(self, data: bytes) -> None:
        """Queue data for the page's connection."""
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
        """Make the page reload."""
        with self.lock:
            self.waiting.append(None)
        self.wake()

    def take(self) -> bytes | None:
        """Return the waiting messages, empty if there are none; None if the page must reload."""
        with self.lock:
            if not self.waiting:
                return b""
            data = self.waiting.popleft()
            self.held -= len(data or b"")
            return data


class Feed:
    """A thread that reads the state of runs and sends changes to open pages; `live` yields what one page receives."""

    def __init__(self, measured: MeasuredRuns) -> None:
        self.runs = AllRuns(measured)
        self._measured = measured
        self._pages: set[OpenPage] = set()
        self._watched: dict[str, WatchedRun] = {}
        self._wake = threading.Event()
        self._ends = False
        self._thread = threading.Thread(target=self._work, name="feed", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def close(self) -> None:
        """Stop the thread and wait for it."""
        self._ends = True
        self._wake.set()
        self._thread.join()
        self.runs.close()

    def dismiss(self) -> None:
        """Make all open pages reload, which ends their connections."""
        for page in list(self._pages):
            page.dismiss()

    async def live(self, run_id: str) -> AsyncIterator[bytes]:
        """Yield events for a page until it must reload; `run_id` is the run that it shows, or ""."""
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
        """Look again and again until closed, less often while no page is open."""
        while not self._ends:
            self._wake.clear()
            try:
                self._look()
            except Exception:
                logging.getLogger(__name__).exception("a look at the runs failed; there is another one soon")
            self._wake.wait(_LOOK_S if self._pages else _IDLE_S)

    def _look(self) -> None:
        """Read all runs once, and send the changes to the pages."""
        seen, drawn = self.runs.look(), self.runs.draw(time.monotonic() + _DRAW_S)
        pages = list(self._pages)  # now: who came meanwhile has asked for the rows of before
        try:
            self._send_rows(pages, seen, drawn)
            self._send_runs(pages)
        finally:
            for page in pages:
                page.send()

    def _send_runs(self, pages: list[OpenPage]) -> None:
        """Queue what is new of the run that each page shows."""
        wanted = {page.run_id for page in pages if page.run_id}
        self._watched = {run_id: one for run_id, one in self._watched.items() if run_id in wanted}
        for run_id in wanted:
            with logged_errors(run_id):
                self._send_run(run_id, [page for page in pages if page.run_id == run_id])

    def _send_run(self, run_id: str, pages: list[OpenPage]) -> None:
        """Queue what is new of one run for the pages that show it, without secrets."""
        secrets = self.runs.secrets(run_id)
        for name, what in self._new_of(run_id):
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
        """Queue the changed rows for each page; if a run is in both sets of changes, the later one
        (`drawn`) is sent.
        """
        rows = {row.id: row for changes in (seen, drawn) for row in changes.runs}
        if (rows or seen.gone) and pages:
            data = _event("runs", RowChanges([*rows.values()], seen.gone))
            for page in pages:
                page.changes.append(data)

    def _new_of(self, run_id: str) -> Iterator[Message]:
        """Yield what is new of one run."""
        status, row = self.runs.status(run_id), self.runs.rows.get(run_id)
        if status is None or row is None:
            return
        self.runs.bring(run_id)
        if run_id not in self._watched:
            self._watched[run_id] = WatchedRun(api.run(run_id), self._measured)
        with contextlib.suppress(OSError):  # its folder may be taken away meanwhile
            yield from self._watched[run_id].look(status, row)


def _event(name: str, what: object) -> bytes:
    """Return a server-sent event."""
    return b"event: " + name.encode() + b"\ndata: " + encode(what) + b"\n\n"
