"""Read a run's metrics incrementally as its files grow, so that no line is read twice. Two sources are read: reports of
the agents, and the files that the trainer writes itself. They are read start by start: a start of the ranks, known by
its attempt and generation, makes earlier values of the steps that it repeats invalid.
"""

import heapq
import json
import math
import os
import re
from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from itertools import islice
from operator import attrgetter, itemgetter, lt
from pathlib import Path
from typing import Annotated, Any, cast

import msgspec

from launcher.apps.board.measured.table import MISSING, MOST_STEP, NO_TIME, StepTable
from launcher.run.durable import NOT_JSON
from launcher.run.layout import RunDir
from launcher.status.series import AT, STEP, flat
from trainer.metrics_files import ATTEMPT, START, files_in, open_file

_CHUNK_BYTES = 1 << 18  # more at a time is slower, and holds up the threads that answer pages
_NO_START = -1  # what is reported before any is nobody's
_MOST_RANKS = (1 << 16) - 1
_REPORTED = re.compile(r"reported\.n[0-9]+\.a([0-9]+)\.jsonl")
_SAMPLED = re.compile(r"system\.n[0-9]+\.a([0-9]+)\.jsonl")
_NOT_FINITE = {"nan": math.nan, "inf": math.inf, "-inf": -math.inf}
Step = Annotated[int, msgspec.Meta(ge=-MOST_STEP, le=MOST_STEP)]
_Key = tuple[int, int]  # attempt and generation, which put starts in order


@dataclass(frozen=True, slots=True)
class ReadingLimits:
    """Limits on how much of a run's metrics is read: from `long_bytes` on a page first shows a sample of `places` parts
    of `place_bytes` each; an ended run with over `row_bytes` has no small curve.
    """

    long_bytes: int = 32 << 20  # with more than this, a page shows a sample first
    row_bytes: int = 4 << 20  # an ended run with more than this has no small curve in the table
    places: int = 1024  # parts of a sample, over all files
    place_bytes: int = 4096


class ReportLine(msgspec.Struct, gc=False):
    """A line of a file of reports: either the mark that a generation has started, of which only `generation` is set, or
    the report of one rank.
    """

    generation: int | None = None
    step: Step = 0
    at: float = NO_TIME  # Unix time
    rank: Annotated[int, msgspec.Meta(ge=0)] = 0
    values: dict[str, float | str] = {}  # by metric; a number that JSON lacks is a text, such as NaN


_starts, _step, _rank = attrgetter("generation"), attrgetter("step"), attrgetter("rank")
_reports = msgspec.json.Decoder(ReportLine)
_objects = msgspec.json.Decoder(dict[str, Any])


class _Late(Exception):
    """Raised for a line of an earlier start than the newest one read. All files then have to be read again, in
    order.
    """


class GrowingLines:
    """A reader of the whole lines that were added to a file since the last read, in chunks."""

    def __init__(self, path: Path, attempt: int, pause: Callable[[], object] = lambda: None) -> None:
        self.path, self.key = path, (attempt, _NO_START)
        self._pause = pause  # before each chunk: somebody else may be in more of a hurry
        self._offset = 0
        self._size = -1  # when it was looked at last; -1: not yet

    def chunks(self) -> Iterator[bytes]:
        """Yield chunks of whole lines that were written since the last call.

        An unfinished line is left for a later call.
        """
        if self._size == self._offset:
            return
        try:
            file = open_file(self.path)
        except OSError:
            return
        with file:
            file.seek(self._offset)
            rest = b""
            while data := file.read(_CHUNK_BYTES):
                self._pause()
                whole, newline, rest = (rest + data).rpartition(b"\n")
                self._offset += len(whole) + len(newline)
                if newline:
                    yield whole

    def shrank(self) -> bool:
        """Return whether the file is now shorter than the part that was read, so that it must have been replaced."""
        try:
            self._size = os.stat(self.path).st_size
        except OSError:
            self._size = 0
        return self._size < self._offset


class GlimpsedLines(GrowingLines):
    """A reader that samples a long file: it returns the whole lines in `places` + 1 evenly spread pieces of
    `place_bytes` each, the first and the last of the file included. A file no longer than the pieces is read whole.
    """

    def __init__(self, path: Path, attempt: int, places: int, place_bytes: int) -> None:
        super().__init__(path, attempt)
        self._places, self._place_bytes = places, place_bytes

    def chunks(self) -> Iterator[bytes]:
        """Yield the sample, or the whole of a short file, in chunks of whole lines; nothing if it cannot be opened."""
        try:
            file = open_file(self.path)
        except OSError:
            return
        with file:
            size, kept = os.fstat(file.fileno()).st_size, list[bytes]()
            if size <= (self._places + 1) * self._place_bytes:
                yield from super().chunks()
                return
            between = (size - self._place_bytes) / self._places
            for offset in (int(place * between) for place in range(self._places + 1)):
                data = os.pread(file.fileno(), self._place_bytes, offset)
                begin = data.find(b"\n") + 1 if offset else 0
                if (whole := data[begin : data.rfind(b"\n") + 1]) and (begin or not offset):
                    kept.append(whole.rstrip(b"\n"))
        if kept:
            yield b"\n".join(kept)


def glimpse(run: RunDir, limits: ReadingLimits | None = None) -> "MeasuredRun":
    """Return a sample of a run's metrics, in a time that does not depend on how many there are.

    `limits` sets its size (None: the usual one). Values of steps that a restart repeated may still be in it.
    """
    limits = limits or ReadingLimits()
    places = max(16, limits.places // max(1, len([*run.metrics.glob("*.jsonl")])))
    found = MeasuredRun(run, partial(GlimpsedLines, places=places, place_bytes=limits.place_bytes))
    found.renew()
    return found


class MeasuredRun:
    """The metrics of one run, as far as they were read; `renew` reads what was added. `rewinds` has, for each restart
    that repeated steps, the first repeated step.
    """

    def __init__(
        self, run: RunDir, reader: Callable[[Path, int], GrowingLines] = GrowingLines, *, system: bool = False
    ) -> None:
        """Prepare to read a run's metrics or, with `system`, what its machines and ranks used."""
        self._run, self._reader = run, reader
        self._pattern, self._system = (_SAMPLED if system else _REPORTED), system
        self.is_read = False  # once, as a whole
        self.rewinds: list[int] = []  # from which step on what was known became void, one entry each time
        self._begin()

    def _begin(self) -> None:
        """Drop everything that was read, so that the next read starts at the beginning of all files."""
        self._files: dict[str, GrowingLines] = {}
        self._reported, self._written = StepTable(), StepTable()
        self._newest: dict[int, _Key] = {}
        self._first: int | None = None

    def renew(self) -> None:
        """Read what was written since the last call. If a file has become shorter, or a new line belongs to an earlier
        start than those read before, drop everything and read all files from their beginning.
        """
        try:
            if any(file.shrank() for file in self._files.values()):
                raise _Late
            self._read(again=False)
        except _Late:
            self._begin()
            self.rewinds.append(0)
            self._read(again=True)
        self.is_read = True

    @property
    def names(self) -> list[str]:
        """The names of the run's metrics."""
        return [name for name in dict.fromkeys((*self._reported.columns, *self._written.columns)) if name != AT]

    @property
    def numbers(self) -> int:
        """The number of values in memory, steps and times included."""
        return sum(len(one.steps) * (2 + len(one.columns)) for one in (self._reported, self._written))

    def points(self, name: str) -> Iterator[tuple[int, float, float]]:
        """Yield (step, Unix time, value) of each point of the metric `name`, in order of steps; the time is 0 if it is
        not known. Yield nothing for a name without values.

        For a step with a value in the agents' reports and another in the trainer's files, the trainer's is yielded.
        """
        in_reports, written = name in self._reported.columns, name in self._written.columns
        if not written:
            return self._reported.points(name) if in_reports else iter(())
        own = ((step, at or self._reported.time_of(step), value) for step, at, value in self._written.points(name))
        return _once(heapq.merge(own, self._reported.points(name), key=lambda point: point[0])) if in_reports else own

    def column(self, name: str) -> "tuple[array[int], array[float], array[float]] | None":
        """Return (steps, times, values) of the metric `name`, as the arrays in memory, which the caller must not
        change.

        Return None if the metric has no value, values from both sources, or none for some step at which its source has
        another metric.
        """
        tables = [one for one in (self._reported, self._written) if name in one.columns]
        if len(tables) != 1 or tables[0].columns[name].count(MISSING) or not tables[0].steps:
            return None
        return tables[0].steps, tables[0].at, tables[0].columns[name]

    def since(self, name: str, step: int) -> list[tuple[int, float, float]]:
        """Return the points (step, Unix time, value) of the metric `name` with greater steps than `step`, in order of
        steps; an empty list for a metric that the run does not have.
        """
        tables = [one for one in (self._reported, self._written) if name in one.columns]
        found: dict[int, tuple[int, float, float]] = {}
        for one in tables:
            for place in range(len(one.steps) - 1, -1, -1):
                if one.steps[place] <= step:
                    break
                if one.columns[name][place] != MISSING:
                    at = one.at[place] or self._reported.time_of(one.steps[place])
                    found[one.steps[place]] = (one.steps[place], at, one.columns[name][place])
        return [found[step] for step in sorted(found)]

    def newest(self, name: str) -> tuple[int, float] | None:
        """Return (the last step with a value of the metric, that value), or None if there is none."""
        found = [one for table in (self._reported, self._written) if (one := table.newest(name)) is not None]
        return max(reversed(found), key=lambda one: one[0], default=None)

    def last(self) -> int:
        """Return the last step for which any metric has a value, or -1."""
        return max(self._reported.last, self._written.last)

    # -- the agents' files and the trainer's

    def _read(self, *, again: bool) -> None:
        """Read the new lines of all files, in the order of starts.

        Raise _Late if a line belongs to an earlier start than those read before. With `again` files are read from their
        beginning, and no line is too late.
        """
        streams = [self._reports_of(self._file(path)) for path in self._reports()]
        for key, lines in heapq.merge(*streams, key=lambda part: part[0]):
            if self._is_new(0, key, again=again):
                self._first = None
            self._add_reports(lines)
        starts = [self._written_in(file) for file in map(self._file, self._trainer_files())]
        for key, written in heapq.merge(*starts, key=lambda part: part[0]):
            self._is_new(1, key, again=again)
            for line in written:
                self._add_written_line(line)

    def _reports(self) -> list[Path]:
        """Return the paths of the agents' files that this object reads: reports of ranks, or samples of the nodes' own
        load if it was made for these (`system`); [] if there are none yet.
        """
        folder = self._run.metrics
        try:
            return [folder / name for name in sorted(filter(self._pattern.fullmatch, os.listdir(folder)))]
        except (FileNotFoundError, NotADirectoryError):
            return []

    def _trainer_files(self) -> list[Path]:
        """Return the files of metrics that the trainer wrote itself; none if this reads what nodes use (`system`)."""
        return [] if self._system else files_in(self._run.metrics)

    def _file(self, path: Path) -> GrowingLines:
        """Return the reader of a file; it is made at the first call, and continues later."""
        if path.name not in self._files:
            found = self._pattern.fullmatch(path.name)
            self._files[path.name] = self._reader(path, int(found[1]) if found else 0)
        return self._files[path.name]

    def _is_new(self, which: int, key: _Key, *, again: bool) -> bool:
        """Return whether the start `key`, (attempt, generation), comes after all that were read from source `which` (0:
        the agents' reports, 1: the trainer's files).

        If it comes before one of them, raise _Late, so that the caller reads all files again in order. With `again`,
        during that second reading, _Late is not raised.
        """
        newest = self._newest.get(which, (-1, 0))
        if key < newest and not again:
            raise _Late
        self._newest[which] = max(key, newest)
        return key != newest

    def _reports_of(self, file: GrowingLines) -> Iterator[tuple[_Key, list[ReportLine]]]:
        """Yield (start, its new reports) for each start in a file."""
        for whole in map(_decoded, file.chunks()):
            if whole and [*map(_starts, whole)].count(None) == len(whole):  # nearly always
                if file.key[1] != _NO_START:
                    yield file.key, whole
                continue
            lines: list[ReportLine] = []
            for line in whole:
                if line.generation is None:
                    if file.key[1] != _NO_START:
                        lines.append(line)
                    continue
                if lines:
                    yield file.key, lines
                file.key, lines = (file.key[0], line.generation), []
            if lines:
                yield file.key, lines

    def _add_reports(self, lines: list[ReportLine]) -> None:
        """Add new reports of one start; the values of steps that the start repeats are dropped."""
        least = min(map(_step, lines))
        if self._first is None or least < self._first:
            if self._reported.cut(least, self._first):
                self.rewinds.append(least)
            self._first = least
        if not self._add_in_bulk(lines):
            for line in lines:
                self._add_report(line)

    def _add_in_bulk(self, lines: list[ReportLine]) -> bool:
        """Append many reports at once and return True, if they are of one rank, with the same metrics, all numbers, and
        at ascending steps after the last known one. Else append none of them and return False.

        This is thirty times as fast as one by one.
        """
        steps, rank, values = [*map(_step, lines)], lines[0].rank, [line.values for line in lines]
        names = (*values[0],)
        ascend = steps[0] > self._reported.last and all(map(lt, steps, islice(steps, 1, None)))
        if not ascend or not names or {*map(_rank, lines)} != {rank} or {*map(len, values)} != {len(names)}:
            return False
        try:
            columns = {name: _column(map(itemgetter(name), values)) for name in names}
        except (KeyError, TypeError):  # another metric; a word for a number that is none
            return False
        self._reported.extend(steps, [line.at for line in lines], columns, min(rank, _MOST_RANKS))
        return True

    def _add_report(self, line: ReportLine) -> None:
        """Add the values of one report, of a rank at a step, to the step's row. A metric that several ranks report has
        the value of the lowest rank.
        """
        place = self._reported.row(line.step, line.at)
        for name, value in line.values.items():
            known = value if not isinstance(value, str) else _NOT_FINITE.get(value, math.nan)
            self._reported.put(place, name, known, min(line.rank, _MOST_RANKS))

    def _written_in(self, file: GrowingLines) -> Iterator[tuple[_Key, list[dict[str, Any]]]]:
        """Read what was added to a file of the trainer, and yield (start, its new lines) in the order of the file; one
        start may be yielded several times.
        """
        for chunk in file.chunks():
            lines: list[dict[str, Any]] = []
            for line in map(_parsed, chunk.split(b"\n")):
                if START in line:
                    if lines:
                        yield file.key, lines
                    attempt = line.get(ATTEMPT)
                    file.key, lines = (attempt if isinstance(attempt, int) else 0, 0), []
                lines.append(line)
            if lines:
                yield file.key, lines

    def _add_written_line(self, line: Mapping[str, Any]) -> None:
        """Add the values of a line that the trainer wrote; a line about a start drops the values of steps that are
        repeated.
        """
        start, step = line.get(START), line.get(STEP)
        if isinstance(start, int):
            first = max(start + 1, -MOST_STEP)
            if self._written.cut(first):
                self.rewinds.append(first)
        elif isinstance(step, int) and -MOST_STEP <= step <= MOST_STEP:
            values = dict(flat(line))
            place = self._written.row(step, values.pop(AT, NO_TIME))
            for name, value in values.items():
                self._written.put(place, name, value)


def _column(values: Iterable[float | str]) -> "array[float]":
    """Return the values as an array; raise TypeError if one is a text."""
    return array("d", cast("Iterable[float]", values))


def _once(points: Iterator[tuple[int, float, float]]) -> Iterator[tuple[int, float, float]]:
    """Yield the first of the points of each step. A point is (step, Unix time, value), and `points` are in the order of
    their steps; a step with values in both sources has two.
    """
    last = None
    for point in points:
        if point[0] != last:
            yield point
        last = point[0]


def _decoded(chunk: bytes) -> list[ReportLine]:
    """Return the valid lines of `chunk`; all others are skipped."""
    try:
        return _reports.decode_lines(chunk)
    except NOT_JSON:
        return [line for line in map(_report_in, chunk.split(b"\n")) if line is not None]


def _report_in(text: bytes) -> ReportLine | None:
    """Return the report in a line, or None if the line is damaged."""
    try:
        return _reports.decode(text)
    except NOT_JSON:
        return None


def _parsed(text: bytes) -> dict[str, Any]:
    """Return the object in a JSON line, in which Python's NaN is allowed; an empty dict if the line is invalid."""
    try:
        return _objects.decode(text)
    except NOT_JSON:
        pass
    try:
        line = json.loads(text)
    except (ValueError, RecursionError):
        return {}
    return line if isinstance(line, dict) else {}
