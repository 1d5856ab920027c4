"""The coordinator's pen: one thread that makes its records durable, in order, so that no disk stalls the wire."""

import queue
import threading
from collections.abc import Callable

from launcher.rundir.durable import append_line, write_record
from launcher.rundir.fence import check_fence
from launcher.rundir.layout import AttemptDir, RunDir
from launcher.rundir.records import AttemptEnd, Event, RankExit, RunState

_Entry = Event | RankExit | RunState | AttemptEnd


class Scribe:
    """`write` returns at once. After the first failure (a full disk, a newer attempt) nothing more is written and
    `failed` is called, once, from the scribe's thread."""

    def __init__(self, run: RunDir, attempt: AttemptDir, failed: Callable[[Exception], None]) -> None:
        self._run = run
        self._attempt = attempt
        self._failed = failed
        self._entries: queue.SimpleQueue[_Entry | None] = queue.SimpleQueue()
        self._state: RunState | None = None
        self._thread = threading.Thread(target=self._work, name="scribe", daemon=True)
        self._thread.start()

    def write(self, entry: _Entry) -> None:
        self._entries.put(entry)

    def close(self) -> None:
        """Wait until everything is on disk."""
        self._entries.put(None)
        self._thread.join()

    def _work(self) -> None:
        while (entry := self._entries.get()) is not None:
            try:
                check_fence(self._run, self._attempt.number)
                self._put(entry)
            except Exception as error:  # noqa: BLE001 - whatever it is, the run must hear of it: it would go on unrecorded
                self._failed(error)
                return

    def _put(self, entry: _Entry) -> None:
        match entry:
            case Event():
                append_line(self._run.events, entry)
            case RankExit():
                append_line(self._attempt.exits, entry)
            case RunState():
                write_record(self._run.state, entry)
            case AttemptEnd():
                write_record(self._attempt.end, entry)
