"""Write the coordinator's records durably and in order, in a thread of its own, so that no disk stalls its
connections.
"""

import queue
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from launcher.run.durable import append_line, append_lines, make_dir, write_record
from launcher.run.fence import check_fence
from launcher.run.hangs import HangReport
from launcher.run.layout import AttemptDir, RunDir
from launcher.run.patience import patiently, waiting_for_disks
from launcher.run.records import AttemptEnd, Event, RankExit, RunState
from launcher.states import Cause

AWAITED = ("failure", "ending")  # events that half of a pool's voters have before what follows from them begins


@dataclass(frozen=True, slots=True)
class KeptHang:
    """An entry for the record writer: the report of hang `number` of this attempt."""

    number: int
    report: HangReport


@dataclass(frozen=True, slots=True)
class RoleEnd:
    """An entry for the record writer: the end of the run's main role in this attempt, while other roles go on."""

    end: AttemptEnd


_MOST_LINES = 1000  # of one append: thousands reach the disk in about the time of one
_Entry = Event | RankExit | RunState | AttemptEnd | KeptHang | RoleEnd


class RecordWriter:
    """A thread that writes records: `write` returns at once, and entries wait while the disk refuses them.

    `state_waits` is True if a RunState is among the waiting entries. After the first failure that is not the disk's,
    such as the fence by which a newer attempt forbids writing, nothing more is written and `failed` is called, once,
    from the writer's thread. `notify` is called from there each time an event is on disk that other hosts must have
    before the run goes on.
    """

    def __init__(
        self,
        run: RunDir,
        attempt: AttemptDir,
        failed: Callable[[Exception], None],
        lease_s: float,
        notify: Callable[[], None] = lambda: None,
    ) -> None:
        """Start the thread that writes records; the first record that takes longer than `lease_s` to reach the disk is
        reported. `notify` is called when an event that other hosts must have before the run goes on is on disk.
        """
        self._notify = notify
        self._lease_s, self._told, self._waited = lease_s, False, False
        self._run = run
        self._attempt = attempt
        self._failed = failed
        self._entries: queue.SimpleQueue[_Entry | None] = queue.SimpleQueue()
        self.state_waits = False
        size = run.events.stat().st_size if run.events.exists() else 0
        self.awaited_on_disk = (0, size)  # how many that others are to have, and the size of the history up to the last
        self._thread = threading.Thread(target=self._work, name="record writer", daemon=True)
        self._thread.start()

    def write(self, entry: _Entry) -> None:
        """Queue an entry, such as an event or the run's state, and return at once."""
        if isinstance(entry, RunState):
            self.state_waits = True
        self._entries.put(entry)

    def close(self) -> None:
        """Wait until all queued entries are on disk, however long the disk refuses them, and end the thread; after a
        failure that is not the disk's (`failed`), return without them. Nothing may be queued afterwards.
        """
        self._entries.put(None)
        self._thread.join()

    def _work(self) -> None:
        """Write the queued entries until the writer is closed."""
        with waiting_for_disks(self._note):
            for batch in self._batches():
                try:
                    self._waited, began = False, time.monotonic()
                    patiently(lambda: check_fence(self._run, self._attempt.number))
                    self._put(batch)
                    self._report_if_slow(time.monotonic() - began)
                except Exception as error:  # noqa: BLE001 - whatever it is, the run must hear of it
                    self._failed(error)
                    return

    def _batches(self) -> Iterator[list[_Entry]]:
        """Yield the queued entries in order, in lists that one append to a file can take; wait while there is none. End
        at the entry None, which means that no more will come.
        """
        batch: list[_Entry] = []
        while True:
            try:
                entry = self._entries.get(block=not batch)
            except queue.Empty:
                yield batch
                batch = []
                continue
            if batch and (entry is None or not _fits_batch(batch, entry)):
                yield batch
                batch = []
            if entry is None:
                return
            batch.append(entry)

    def _report_if_slow(self, took_s: float) -> None:
        """Report to users that a record took longer than the lease to reach the disk, if it did; do so once in this
        object's life, and not if it was reported that a full disk refused records.
        """
        if took_s > self._lease_s and not self._told and not self._waited:
            self._told = True
            took = f"a record took {took_s:.1f} s to reach the disk, longer than the lease ({self._lease_s:g} s)"
            self._note(f"{took}: what others read of the run is late; a longer recovery.lease or another disk helps")

    def _note(self, text: str) -> None:
        """Append an event with this text about the coordinator's disk."""
        self._waited = True
        append_line(self._run.events, Event(time.time(), self._attempt.number, "disk", text, cause=Cause.DISK))

    def _put(self, batch: list[_Entry]) -> None:
        """Write a batch of entries, which all belong to one file, to that file; wait while its disk refuses them.

        Several together are events or exits of ranks, which are appended; each other record replaces its file.
        """
        match batch[-1]:
            case Event(kind=kind):
                append_lines(self._run.events, batch)
                if kind in AWAITED:
                    self.awaited_on_disk = (self.awaited_on_disk[0] + 1, self._run.events.stat().st_size)
                    self._notify()
            case RankExit():
                append_lines(self._attempt.exits, batch)
            case RunState() as state:
                write_record(self._run.state, state)
                self.state_waits = False
            case KeptHang(number=number, report=report):
                place = self._attempt.hang(number)
                make_dir(place.parent)
                write_record(place, report)
            case RoleEnd(end=end):
                write_record(self._attempt.role_end, end)
            case AttemptEnd() as end:
                write_record(self._attempt.end, end)


def _fits_batch(batch: list[_Entry], entry: _Entry) -> bool:
    """Return whether the entry can be appended together with the batch: both go to the same file of lines, and the
    batch is not full.

    Nothing is appended to a batch after an event that other hosts must have before the run goes on (a failure, or the
    announcement of the end), because the history up to that event is copied to them.
    """
    last = batch[-1]
    if not isinstance(last, Event | RankExit) or (isinstance(last, Event) and last.kind in AWAITED):
        return False
    return type(entry) is type(last) and len(batch) < _MOST_LINES
