"""Small writes that nobody waits for, in a thread: a disk that is slow keeps no agent from its heartbeats."""

import contextlib
import queue
import threading
from collections.abc import Callable

_LAST_S = 1.0


class WriteBehind:
    """Writes that are done in order, later. What a full or failing disk does not take is left out."""

    def __init__(self) -> None:
        self._writes: queue.SimpleQueue[Callable[[], object] | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None

    def do(self, write: Callable[[], object]) -> None:
        """Return at once."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._work, name="write behind", daemon=True)
            self._thread.start()
        self._writes.put(write)

    def close(self) -> None:
        """Wait for the last of them; a disk that hangs is not waited for."""
        if self._thread is not None:
            self._writes.put(None)
            self._thread.join(_LAST_S)
            self._thread = None

    def _work(self) -> None:
        while (write := self._writes.get()) is not None:
            with contextlib.suppress(OSError):
                write()
