"""The rank → agent wire: a FIFO per rank, named by LAUNCH_PROGRESS, one JSON object a line.

A script needs three lines to use it:

    wire = open(os.environ["LAUNCH_PROGRESS"], "w", buffering=1)
    wire.write('{"step": 12, "total_steps": 200, "loss": 0.31}\\n')
    wire.write('{"checkpoint": 10}\\n')

Words with a meaning: step, total_steps, checkpoint (a step that is safely on disk), fingerprint, done (whatever
happens after it is not a failure), exception (written by the rank's starter). Every other number is a metric. A line
stays under 4096 bytes, so that lines of several writers never mix; what is not such a line is dropped.
"""

import asyncio
import json
import os
from collections.abc import Callable
from math import isfinite
from pathlib import Path

import msgspec

from launcher.rundir.records import Raised

MAX_LINE_BYTES = 4096
_READ_BYTES = 1 << 16
_MAX_METRICS = 64
_MAX_STEP = 1 << 53


class ExceptionReport(msgspec.Struct, frozen=True):
    """An exception that nobody caught, as the rank's starter tells of it, or as the log ends."""

    line: str = ""
    where: str = ""
    raised: tuple[Raised, ...] = ()  # it, and what it came from


class Report(msgspec.Struct, frozen=True):
    """One line of a rank, as far as it has a meaning."""

    step: int | None = None
    total_steps: int | None = None
    checkpoint: int | None = None
    fingerprint: str | None = None
    done: bool = False
    exception: ExceptionReport | None = None


class Progress:
    """What one rank has reported so far."""

    def __init__(self) -> None:
        self.step: int | None = None
        self.total_steps: int | None = None
        self.checkpoint: int | None = None
        self.fingerprint: str | None = None
        self.done = False
        self.exception: ExceptionReport | None = None
        self.metrics: dict[str, float] = {}
        self.reported = False
        self.dropped_lines = 0

    def take(self, line: bytes) -> bool:
        """Take in one line; False where it says nothing that we understand."""
        try:
            words = _words(line)
            report = msgspec.convert(words, Report)
        except (msgspec.MsgspecError, ValueError, RecursionError):
            self.dropped_lines += 1
            return False
        if not all(_is_step(value) for value in (report.step, report.total_steps, report.checkpoint)):
            self.dropped_lines += 1
            return False
        self._merge(report, words)
        return True

    def _merge(self, report: Report, words: dict[str, object]) -> None:
        self.step = report.step if report.step is not None else self.step
        self.total_steps = report.total_steps if report.total_steps is not None else self.total_steps
        self.checkpoint = report.checkpoint if report.checkpoint is not None else self.checkpoint
        self.fingerprint = report.fingerprint if report.fingerprint is not None else self.fingerprint
        self.exception = report.exception if report.exception is not None else self.exception
        self.done = self.done or report.done
        self.reported = self.reported or report.exception is None
        for name, value in words.items():
            known = name in Report.__struct_fields__
            number = isinstance(value, (int, float)) and not isinstance(value, bool) and isfinite(value)
            if number and not known and (name in self.metrics or len(self.metrics) < _MAX_METRICS):
                self.metrics[name[:64]] = float(value)  # type: ignore[arg-type]


def _words(line: bytes) -> dict[str, object]:
    try:
        return msgspec.json.decode(line, type=dict[str, object])
    except msgspec.DecodeError:
        # Python's own json writes NaN and Infinity, and a loss that is one must not hide the step beside it.
        return msgspec.convert(json.loads(line), dict[str, object])


def _is_step(value: int | None) -> bool:
    return value is None or 0 <= value <= _MAX_STEP


class ProgressPipe:
    """The agent's end of one rank's FIFO."""

    def __init__(self, path: Path, progress: Progress, on_report: Callable[[], None]) -> None:
        path.unlink(missing_ok=True)
        os.mkfifo(path, 0o600)
        # Read and write, so that the FIFO never ends while no rank has it open.
        self._fd = os.open(path, os.O_RDWR | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC)
        self._path = path
        self._progress = progress
        self._on_report = on_report
        self._rest = b""
        self._closed = False
        asyncio.get_running_loop().add_reader(self._fd, self.drain)

    def drain(self) -> None:
        """Take in what is there now."""
        heard = False
        while True:
            try:
                data = os.read(self._fd, _READ_BYTES)
            except BlockingIOError:
                break
            *lines, self._rest = (self._rest + data).split(b"\n")
            if len(self._rest) > MAX_LINE_BYTES:
                self._rest = b""
                self._progress.dropped_lines += 1
            for line in lines:
                heard = self._progress.take(line) or heard
        if heard:
            self._on_report()

    def close(self) -> None:
        """Drain a last time and take the FIFO away; once, for a rank whose end is heard after all was closed."""
        if self._closed:
            return
        self._closed = True
        self.drain()
        asyncio.get_running_loop().remove_reader(self._fd)
        os.close(self._fd)
        self._path.unlink(missing_ok=True)
