"""Keeps what the ranks of a node report, with its step and time, a line each, for `launch metrics`.

    {"generation": 2}                                                      whoever starts anew says so
    {"step": 120, "at": 1767225600.25, "rank": 0, "values": {"loss": 0.31}}

A thread writes, so that no disk holds the agent up; what a full disk does not take is left out. Of reports that come in
quick succession the newest is kept, ever further apart: a run of a month costs megabytes.
"""

import math
import os
import queue
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import msgspec

_LEAST_S = 0.05  # between two reports of the same names by one rank
_SPREAD = 20_000  # about so many at that pace; later ones are further apart, in proportion to the time
_LAST_S = 1.0
_Key = tuple[int, frozenset[str]]


class MetricsFile:
    """The reports of one generation's ranks on this node, added to the attempt's file. No report, no file."""

    def __init__(self, path: Path, generation: int, now: Callable[[], float] = time.monotonic) -> None:
        self._path, self._now, self._began = path, now, now()
        self._next: dict[_Key, float] = {}
        self._held: dict[_Key, bytes] = {}
        self._lines: queue.SimpleQueue[bytes] = queue.SimpleQueue()
        self._over = False
        self._thread = threading.Thread(target=self._work, name="metrics", daemon=True)
        self._first = _encoded({"generation": generation})

    def add(self, rank: int, step: int, values: Mapping[str, float]) -> None:
        """Returns at once."""
        if self._first:
            self._thread.start()
            self._lines.put(self._first)
            self._first = b""
        key, now = (rank, frozenset(values)), self._now()
        plain = {name: value if math.isfinite(value) else repr(value) for name, value in values.items()}
        self._held[key] = _encoded({"step": step, "at": time.time(), "rank": rank, "values": plain})
        if now >= self._next.get(key, 0.0):
            self._next[key] = now + max(_LEAST_S, (now - self._began) / _SPREAD)
            self._lines.put(self._held.pop(key))

    def close(self) -> None:
        """Write the last of each, once no rank reports any more. A disk that hangs is not waited for."""
        if self._first:
            return
        for line in self._held.values():
            self._lines.put(line)
        self._held.clear()
        self._over = True
        self._lines.put(b"")
        self._thread.join(_LAST_S)

    def _work(self) -> None:
        whole = False  # whoever wrote before us may have been killed in the middle of a line
        while not self._over or not self._lines.empty():
            batch = [self._lines.get()]
            while not self._lines.empty():
                batch.append(self._lines.get())
            whole = self._write((b"" if whole else b"\n") + b"".join(batch))

    def _write(self, data: bytes) -> bool:
        """Whether all of it is there."""
        try:
            fd = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
            try:
                return os.write(fd, data) == len(data)
            finally:
                os.close(fd)
        except OSError:
            return False


def _encoded(line: Mapping[str, object]) -> bytes:
    return msgspec.json.encode(line) + b"\n"
