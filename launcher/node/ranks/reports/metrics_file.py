"""Write the metrics that the ranks of a node report to a file for `launch metrics`: one JSON line each, with step and
time. Once a rank has reported a metric 10,000 times, only extreme values and one report now and then are written.

    {"generation": 2}                                                      written by each new agent
    {"step": 120, "at": 1767225600.25, "rank": 0, "values": {"loss": 0.31}}

A thread writes, so that no disk delays the agent; lines that a full disk refuses are dropped. The first 10,000 reports
of the same metrics by one rank are all kept. After that, of reports in quick succession the newest is kept, at longer
and longer intervals, and each that has the least or the largest value of a metric so far. A run of a month costs
megabytes, and its last and best values are exact. A line says how many reports were left out before it: `"left_out":
17`.
"""

import math
import os
import queue
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from launcher.node.ranks.reports.logfile import LAST_S

KEPT_WHOLE = 10_000  # reports of the same names by one rank: about a megabyte
_LEAST_S = 0.05  # between two later ones
_SPREAD = 20_000  # about so many at that pace; later ones are further apart, in proportion to the time
_Key = tuple[int, frozenset[str]]


@dataclass(frozen=True, slots=True)
class _Reported:
    """A report of metrics by a rank."""

    step: int
    at: float  # Unix time at which it arrived
    rank: int
    values: Mapping[str, float]  # by metric

    def line(self, left_out: int) -> bytes:
        """Return the report as a line of JSON; `left_out` is the number of reports left out before it."""
        plain = {name: value if math.isfinite(value) else repr(value) for name, value in self.values.items()}
        line = {"step": self.step, "at": self.at, "rank": self.rank, "values": plain}
        return _encoded({**line, "left_out": left_out} if left_out else line)


@dataclass(slots=True)
class _Series:
    """The reports of the same metrics by one rank that are not written yet, and the least and largest value of each
    metric so far.

    `seen` counts all reports, `next_at` is the earliest time to write one, `extremes` holds unwritten ones by (metric,
    sign).
    """

    seen: int = 0
    next_at: float = 0.0  # by the monotonic clock
    waiting: int = 0  # reports since the last line that was written, which are not written
    newest: _Reported | None = None
    extremes: dict[tuple[str, int], _Reported] = field(default_factory=dict)  # unwritten, by (metric, sign)
    bounds: dict[tuple[str, int], float] = field(default_factory=dict)  # the largest value times sign (1 or -1) so far

    def add(self, report: _Reported) -> None:
        """Add a report, and keep it as an extreme if one of its values is the least or the largest so far."""
        self.seen += 1
        self.waiting += 1
        self.newest = report
        for name, value in report.values.items():
            for sign in (-1, 1):
                if math.isfinite(value) and sign * value > self.bounds.get((name, sign), -math.inf):
                    self.bounds[name, sign] = sign * value
                    self.extremes[name, sign] = report

    def take(self) -> bytes:
        """Return the lines to write, which are removed: unwritten reports with a new extreme, and the newest report."""
        if self.newest is None:
            return b""
        chosen = [*{id(one): one for one in self.extremes.values() if one is not self.newest}.values()]
        chosen.sort(key=lambda one: one.at)
        left_out = self.waiting - len(chosen) - 1
        lines = b"".join(one.line(0) for one in chosen) + self.newest.line(left_out)
        self.waiting, self.newest = 0, None
        self.extremes.clear()
        return lines


class MetricsFile:
    """The file of metrics of one generation's ranks on this node, which exists only once a rank reports any."""

    def __init__(
        self, path: Path, generation: int, now: Callable[[], float] = time.monotonic, kept_whole: int = KEPT_WHOLE,
        spread: int = _SPREAD,
    ) -> None:  # fmt: skip
        """Start the file's writer.

        Reports beyond `kept_whole` are thinned to one in each of `spread` parts of the time that has passed.
        """
        self._path, self._now, self._began, self._kept_whole, self._spread = path, now, now(), kept_whole, spread
        self._series: dict[_Key, _Series] = {}
        self._lines: queue.SimpleQueue[bytes] = queue.SimpleQueue()
        self._over = False
        self._thread = threading.Thread(target=self._work, name="metrics", daemon=True)
        self._first = _encoded({"generation": generation})

    def add(self, rank: int, step: int, values: Mapping[str, float]) -> None:
        """Add a report of `values`, metrics by name, without waiting for the disk."""
        if self._first:
            self._thread.start()
            self._lines.put(self._first)
            self._first = b""
        now = self._now()
        series = self._series.setdefault((rank, frozenset(values)), _Series())
        series.add(_Reported(step, time.time(), rank, dict(values)))
        if series.seen <= self._kept_whole or now >= series.next_at:
            series.next_at = now + max(_LEAST_S, (now - self._began) / self._spread)
            self._lines.put(series.take())

    def close(self) -> None:
        """Write the last report of each series, if it was not written yet, and end the writing; call it once no rank
        reports any more.

        As the disk may hang, this waits for it for at most a second (LAST_S).
        """
        if self._first:
            return
        for series in self._series.values():
            self._lines.put(series.take())
        self._series.clear()
        self._over = True
        self._lines.put(b"")
        self._thread.join(LAST_S)

    def _work(self) -> None:
        """Write the queued lines, many at a time, until the file is closed and the queue is empty. Lines that cannot be
        written, for instance to a full disk, are dropped.
        """
        whole = False  # an earlier writer may have been killed in the middle of a line
        while not self._over or not self._lines.empty():
            batch = [self._lines.get()]
            while not self._lines.empty():
                batch.append(self._lines.get())
            whole = self._write((b"" if whole else b"\n") + b"".join(batch))

    def _write(self, data: bytes) -> bool:
        """Append the data; return False if it could not be written, or only its beginning could."""
        try:
            fd = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
            try:
                return os.write(fd, data) == len(data)
            finally:
                os.close(fd)
        except OSError:
            return False


def _encoded(line: Mapping[str, object]) -> bytes:
    """Return `line`, {name: value}, as a line of JSON with a newline at its end."""
    return msgspec.json.encode(line) + b"\n"
