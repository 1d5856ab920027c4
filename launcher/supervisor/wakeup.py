"""Wake a waiting process: on a child's end, a request to stop, or by the clock."""

import contextlib
import os
import select
import signal
import time
from collections.abc import Collection
from types import FrameType


class Wakeup:
    """A sleep that ends early on SIGCHLD, on SIGTERM (`stop_asked`), and on the given warning signals (`warned`)."""

    def __init__(self, warnings: Collection[int] = ()) -> None:
        self.stop_asked = False
        self.warned = False  # one of the warnings has come
        self._read, self._write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        signal.set_wakeup_fd(self._write, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.signal(signal.SIGTERM, self._stop)
        for number in warnings:
            signal.signal(number, self._warn)
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        signal.signal(signal.SIGINT, signal.SIG_IGN)

    def _stop(self, _number: int, _frame: FrameType | None) -> None:
        """Note that a stop was requested."""
        self.stop_asked = True

    def _warn(self, _number: int, _frame: FrameType | None) -> None:
        """Note that a warning signal has come."""
        self.warned = True

    def wake(self) -> None:
        """End the wait; may be called from another thread."""
        with contextlib.suppress(BlockingIOError):  # full: it wakes already
            os.write(self._write, b"!")

    def sleep(self, timeout_s: float | None, also: Collection[int] = ()) -> None:
        """Wait until woken, until one of the descriptors in `also` can be read, or until `timeout_s` has passed."""
        select.select([self._read, *also], [], [], None if timeout_s is None else max(0.0, timeout_s))
        try:
            os.read(self._read, 4096)
        except BlockingIOError:
            return  # the clock woke us

    def wait(self, timeout_s: float) -> None:
        """Wait until SIGTERM asks for a stop or `timeout_s` has passed; go on waiting after any other wake-up."""
        deadline = time.monotonic() + timeout_s
        while not self.stop_asked and (left_s := deadline - time.monotonic()) > 0:
            self.sleep(left_s)
