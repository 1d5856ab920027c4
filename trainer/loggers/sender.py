"""Send values of steps to a server from a thread, in order, and retry while the server is away."""

import logging
import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import Protocol

log = logging.getLogger("trainer")
_AT_ONCE = 50
_MOST = 10_000  # that wait for a server: some megabytes
_FIRST_WAIT_S, _LONGEST_WAIT_S = 1.0, 60.0


@dataclass(frozen=True, slots=True)
class Row:
    """The values of one step, and the time `at` which they were measured.

    `of_test`: they are of a test of that step's weights.
    """

    step: int
    values: Mapping[str, float]
    at: float  # seconds since 1970
    of_test: bool = False  # the values are of a test, of the weights of that step


Earlier = Callable[[int | None], list[Row]]  # what was written down of the steps up to this one, or of all


class Tracker(Protocol):
    """The interface of a running training's connection to a tracking server, such as W&B or MLflow.

    A row is the metrics of one step. A Sender calls the methods, one at a time in its thread. After an error it calls
    `send` again with the same rows, so that an implementation has to leave out those that the server has.
    """

    def open(self) -> None:
        """Connect, and begin the training's run or continue the one of earlier processes.

        If it raises an error, it is called again later.
        """

    def send(self, rows: Sequence[Row]) -> None:
        """Send rows in order, except those that the server's run already has.

        It has some if an earlier try failed half-way, or if the training was restarted.
        """

    def close(self, *, done: bool) -> None:
        """Close the run on the server: as finished if the training is `done`, else as failed or killed."""


class Sender:
    """A queue of rows that a thread sends to a tracking server.

    Neither `put` nor `end` raises an error, and only `end` waits. While the server is away, 10,000 rows are kept; those
    that come then are lost, and `end` logs how many were not sent.
    """

    def __init__(self, name: str, tracker: Tracker, earlier: Earlier) -> None:
        """Take `earlier`, which returns the rows of earlier starts that the server may lack."""
        self._name, self._tracker = name, tracker
        self._earlier: Earlier | None = earlier
        self._waiting: deque[Row] = deque()
        self._changed = threading.Condition()  # holds for all of these
        self._lost = 0
        self._ending = threading.Event()
        self._done = False
        self._warned = False
        self._thread = threading.Thread(target=self._work, name=name, daemon=True)
        self._thread.start()

    def put(self, row: Row) -> None:
        """Add a row to send, or count it as lost if 10,000 are waiting."""
        with self._changed:
            if len(self._waiting) < _MOST:
                self._waiting.append(row)
            else:
                self._lost += 1
            self._changed.notify()

    def end(self, patience_s: float, *, done: bool) -> None:
        """Send the waiting rows within `patience_s` seconds, log how many could not be sent, and close the run.

        With `done` the training has ended, and the run is closed as finished; else as failed or killed. If the server
        does not answer in time, the run is not closed.
        """
        with self._changed:
            self._done = done
            self._ending.set()
            self._changed.notify()
        self._thread.join(patience_s)
        with self._changed:
            left = len(self._waiting) + self._lost
        if left:
            log.warning("%s: the values of %d steps were not sent", self._name, left)
        elif self._thread.is_alive():
            log.warning("%s: no answer within %g s of the end", self._name, patience_s)

    def _work(self) -> None:
        """Open the tracker and send rows, retrying after errors, until `end` is called.

        Then the remaining rows are sent and the run on the server is closed. A try that begins after `end` was called
        is the last one: if it fails, the run is not closed.
        """
        opened, wait_s = False, _FIRST_WAIT_S
        while True:
            last = self._wait_for_work() if opened else self._ending.is_set()
            try:
                if not opened:
                    self._tracker.open()
                    opened = True
                self._send_some()
                wait_s = _FIRST_WAIT_S
                if last and not self._waiting:
                    self._tracker.close(done=self._done)
                    return
            except Exception as error:  # noqa: BLE001 - whatever a service may raise, the training goes on
                self._warn(error)
                if last:  # it was tried once more after the end had come
                    return
                self._ending.wait(wait_s)
                wait_s = min(2 * wait_s, _LONGEST_WAIT_S)

    def _wait_for_work(self) -> bool:
        """Wait until there are rows to send or `end` was called; return True if it was, even if rows are left."""
        with self._changed:
            self._changed.wait_for(lambda: self._waiting or self._ending.is_set())
            return self._ending.is_set()

    def _send_some(self) -> None:
        """Send at most 50 of the waiting rows, after those that earlier processes had not sent.

        Raises the errors of the tracker; the rows then stay in the queue.
        """
        if self._earlier is not None and (self._waiting or self._done):
            self._send_earlier(self._earlier)
            self._earlier = None
        with self._changed:
            rows = list(islice(self._waiting, _AT_ONCE))
        if rows:
            self._tracker.send(rows)
        with self._changed:
            for _ in rows:
                self._waiting.popleft()

    def _send_earlier(self, earlier: Earlier) -> None:
        """Send the rows that earlier processes had not sent.

        `earlier` returns them. It is called with the step of this process's first waiting row, for rows up to that
        step, or with None, for all rows, if no row waits or the first one has values of a test. An earlier row of that
        same step is merged with it, so that each step is sent once. Raises the errors of the tracker.
        """
        first = self._waiting[0] if self._waiting else None
        rows = earlier(None if first is None or first.of_test else first.step)
        if first is not None and not first.of_test and rows and rows[-1].step == first.step:
            self._waiting[0] = replace(first, values={**rows.pop().values, **first.values})
        for begin in range(0, len(rows), _AT_ONCE):
            self._tracker.send(rows[begin : begin + _AT_ONCE])

    def _warn(self, error: Exception) -> None:
        """Log an error that made sending fail, if it is the first one of this object; later ones are not logged."""
        if not self._warned:
            self._warned = True
            log.warning("%s: sending failed and will be tried again; the training continues: %s", self._name, error)
