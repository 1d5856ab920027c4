"""The channel from a rank to its agent: a FIFO per rank, named by LAUNCH_PROGRESS, on which the rank writes one JSON
object a line, such as {"step": 12, "loss": 0.31}. A generation is one set of ranks that train together.

A script needs three lines to use it:

    wire = open(os.environ["LAUNCH_PROGRESS"], "w", buffering=1)
    wire.write('{"step": 12, "total_steps": 200, "loss": 0.31}\\n')
    wire.write('{"checkpoint": 10}\\n')

Fields with a meaning of their own: step, total_steps, checkpoint (a step that is safely on disk), fingerprint, done
(nothing after it is a failure), asked_to_stop (for instance by a signal: the rank exits with code 75 to be started
again), address (where it serves requests; "": no longer), can_continue (the generation in which it can survive when
another rank is replaced; 0: none), remembered (a step with a snapshot in the node's memory), slow_rank (the rank for
which all others wait, with slow_s, the time of its own work in a step, and usual_s, that of the median rank), exception
(written by the rank's starter). Every other number is a metric. A line is under 4096 bytes long, so that lines of
several writers do not mix; anything else is dropped and counted.
"""

import json
import os
from collections.abc import Callable, Iterator, Mapping
from math import isfinite, isnan
from pathlib import Path
from typing import Literal

import msgspec

from launcher.decoding import converted
from launcher.run.records import NotFinite, Raised
from launcher.wire.messages import Count, SlowRank, WentBack

MAX_LINE_BYTES = 4096
_READ_BYTES = 1 << 16
_MAX_METRICS = 64
_LONGEST_PLACE = 500
_MAX_STEP = 1 << 53


class ExceptionReport(msgspec.Struct, frozen=True):
    """An uncaught exception of a rank, as the process that started the rank reports it or as the end of the rank's log
    or its error file shows it.
    """

    line: str = ""  # the last line of the traceback: type and text
    where: str = ""  # the innermost frame of the user's code, as `file:line in name`
    raised: tuple[Raised, ...] = ()  # this exception and its causes
    failed_rank: Count | None = None  # the rank that it names as failed, for example one that could not save


class Report(msgspec.Struct, frozen=True):
    """A line from a rank: the fields that have a meaning of their own; other numbers are metrics.

    `done` is True once the training is complete, so that a later failure does not count, and False if there is more to
    do after all; `called_exit` and `start_failed` come from the rank's starter; `can_continue` is the generation in
    which the rank can survive (0: none), `resizes` and `goes_back` how; `waits` means that it waits to join others;
    `remembered` is a step with a snapshot in memory. `slow_rank` has `slow_s` of own work per step, the median rank
    `usual_s`. `went_back_to` is the saved step from which training continued, `why` the reason for that.
    """

    step: int | None = None
    total_steps: int | None = None
    checkpoint: int | None = None  # a step that is safely on disk
    fingerprint: str | None = None  # hash of the weights
    asked_to_stop: bool = False  # it has a request to stop, such as a signal, and will exit
    called_exit: bool = False  # it calls sys.exit, or argparse does, as the rank's starter reports
    start_failed: str = ""  # why it could not become the rank, as the rank's starter reports
    done: bool | None = None  # False: there is more to do after all
    exception: ExceptionReport | None = None
    breakpoint: str | None = None  # the FILE:LINE at which it waits for a debugger; "": it continues
    address: str | None = None  # where it serves requests; "": no longer
    can_continue: int | None = None  # the generation in which it can survive the replacement of another rank; 0: none
    resizes: bool = False  # with `can_continue`: it can continue with fewer or more ranks
    goes_back: bool = False  # with `can_continue`: it can continue from a saved state, with fewer ranks
    waits: bool = False  # it waits to join ranks that are in the middle of training
    remembered: int | None = None  # a step of which this node's memory has a snapshot
    slow_rank: int | None = None  # the rank for which all others wait, with the next two fields
    slow_s: float = 0.0
    usual_s: float = 0.0
    went_back_to: int | None = None  # the saved step from which training continued in place
    lost_steps: int = 0  # steps after that one, which are done again
    why: str = ""  # with `went_back_to`: why it had to go back


class Progress:
    """The reports of one rank put together: an attribute, such as `step`, `checkpoint` or `metrics`, has the newest
    reported value, or None or an empty value if the rank has reported none. `take` adds a line that the rank wrote.
    """

    def __init__(self, keep: Callable[[int, Mapping[str, float]], None] | None = None) -> None:
        """Start without reports; `keep` is called with each report that has metrics, and its step."""
        self._keep = keep
        self.step: int | None = None
        self._began: int | None = None  # the first step that it has reported in this generation
        self.total_steps: int | None = None
        self.checkpoint: int | None = None
        self.fingerprint: str | None = None
        self.done = False
        self.asked_to_stop = self.called_exit = False
        self.start_failed = ""
        self.exception: ExceptionReport | None = None
        self.breakpoint = self.address = ""
        self.can_continue: int | None = None
        self.resizes = self.goes_back = self.waits = False
        self.remembered: int | None = None
        self.slow: SlowRank | None = None
        self.went_back: WentBack | None = None
        self.metrics: dict[str, float] = {}
        self.not_finite: dict[str, NotFinite] = {}
        self.reported = False
        self.dropped_lines = 0

    def take(self, line: bytes) -> bool:
        """Record the report in a line and return True; return False, and count the line as dropped, if it is
        malformed.
        """
        try:
            words = _words(line)
            report = converted(words, Report)
        except (msgspec.MsgspecError, ValueError, RecursionError):
            self.dropped_lines += 1
            return False
        counts = (
            report.step, report.total_steps, report.checkpoint, report.can_continue, report.remembered,
            report.slow_rank, report.went_back_to, report.lost_steps,
        )  # fmt: skip
        if not all(map(_is_step, counts)):
            self.dropped_lines += 1
            return False
        self._merge(report, words)
        return True

    def go_on(self) -> None:
        """Begin a new generation for a rank that keeps its process: forget the steps, checkpoints and snapshots that it
        reported in the old one, and whether it was slow or went back. Its other reports, such as its address, stay.
        """
        self.step = self._began = self.checkpoint = self.remembered = self.slow = self.went_back = None
        self.reported = False

    @property
    def steps(self) -> int:
        """Return the number of steps that the rank has made since its first report of a step in this generation, or 0
        if it has reported none.
        """
        return 0 if self.step is None or self._began is None else self.step - self._began

    def _merge(self, report: Report, words: dict[str, object]) -> None:
        """Record the fields of a report, and its metrics. A field that the report leaves out keeps its former value.

        `words` is the report's line as a JSON object: each number in it under a name that is no field of Report is a
        metric.
        """
        self.step = report.step if report.step is not None else self.step
        self._began = self.step if self._began is None else self._began
        self.total_steps = report.total_steps if report.total_steps is not None else self.total_steps
        self.checkpoint = report.checkpoint if report.checkpoint is not None else self.checkpoint
        self.fingerprint = report.fingerprint if report.fingerprint is not None else self.fingerprint
        self.exception = report.exception if report.exception is not None else self.exception
        self.done = report.done if report.done is not None else self.done
        self.asked_to_stop = self.asked_to_stop or report.asked_to_stop
        self.called_exit = self.called_exit or report.called_exit
        self.start_failed = self.start_failed or report.start_failed
        self.breakpoint = report.breakpoint[:_LONGEST_PLACE] if report.breakpoint is not None else self.breakpoint
        self.address = report.address[:_LONGEST_PLACE] if report.address is not None else self.address
        if report.can_continue is not None:
            self.can_continue, self.resizes, self.goes_back = report.can_continue, report.resizes, report.goes_back
        self.waits = self.waits or report.waits
        self.remembered = report.remembered if report.remembered is not None else self.remembered
        if report.slow_rank is not None:
            self.slow = SlowRank(report.slow_rank, report.slow_s, report.usual_s)
        if report.went_back_to is not None:
            self.went_back = WentBack(report.went_back_to, report.lost_steps, report.why[:_LONGEST_PLACE])
        # These fields are no sign of progress.
        place = (report.exception, report.breakpoint, report.address, report.called_exit, report.start_failed)
        self.reported = self.reported or place == (None, None, None, False, "")
        values = dict(self._measured(words))
        if values and self._keep is not None:
            self._keep(self.step or 0, values)

    def _measured(self, words: dict[str, object]) -> Iterator[tuple[str, float]]:
        """Yield (name, value) of the metrics in the line `words`, and record each as the newest. After _MAX_METRICS
        different names, further names are dropped.
        """
        for word, value in words.items():
            name, number = word[:64], _number(value)
            if number is None or word in Report.__struct_fields__:
                continue
            known = self.metrics.keys() | self.not_finite.keys()
            if name in known or len(known) < _MAX_METRICS:
                self._measure(name, number)
                yield name, number

    def _measure(self, name: str, number: float) -> None:
        """Record the newest value of a metric, in `metrics`, or in `not_finite` if it is NaN or infinite."""
        began = self.not_finite.pop(name, None)
        if isfinite(number):
            self.metrics[name] = number
            return
        self.metrics.pop(name, None)
        self.not_finite[name] = NotFinite(_name_of(number), began.since if began else self.step)


def _words(line: bytes) -> dict[str, object]:
    """Return the JSON object in a line; raise a ValueError or msgspec error if there is none."""
    try:
        return msgspec.json.decode(line, type=dict[str, object])
    except msgspec.DecodeError:
        # Python's own json writes NaN and Infinity, and a loss that is one must not hide the step beside it.
        words = json.loads(line)
        json.dumps(
            words, ensure_ascii=False
        ).encode()  # half a pair of surrogates is no text: it could not be passed on
        return msgspec.convert(words, dict[str, object])


def _number(value: object) -> float | None:
    """Return the value as a float, or None if it is not a number (or is a bool)."""
    if not isinstance(value, (int, float)) or isinstance(value, bool):
        return None
    try:
        return float(value)
    except OverflowError:  # an integer beyond all floats
        return None


def _name_of(number: float) -> Literal["NaN", "Infinity", "-Infinity"]:
    """Return the name of a number that is not finite, as many JSON readers spell it."""
    return "NaN" if isnan(number) else "Infinity" if number > 0 else "-Infinity"


def _is_step(value: int | None) -> bool:
    """Return whether the value of a count in a report, such as a step, is None (not reported) or between 0 and
    `_MAX_STEP`.
    """
    return value is None or 0 <= value <= _MAX_STEP


class ProgressPipe:
    """The agent's end of one rank's FIFO. It creates the FIFO; whenever the rank has written, the event loop calls it
    to record the lines in `progress`, and then to call `on_report` once, unless all these lines were malformed.
    """

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
        from asyncio import get_running_loop  # late: a quarter of what a host's server would import to take a run

        self._loop = get_running_loop()
        self._loop.add_reader(self._fd, self.drain)

    def drain(self) -> None:
        """Read all lines that the FIFO holds now, and record them in the rank's `progress`; if any was a report, call
        `on_report`.
        """
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
        """Drain a last time and delete the FIFO; may be called again."""
        if self._closed:
            return
        self._closed = True
        self.drain()
        self._loop.remove_reader(self._fd)
        os.close(self._fd)
        self._path.unlink(missing_ok=True)
