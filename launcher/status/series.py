"""Read a run's metrics by step: those that its ranks reported to their agents, and those that the trainer wrote itself.
A generation is one start of all ranks. If steps were repeated after a restart, only the last values count; lines that a
kill cut short are skipped. An attempt is one batch job, or one start on a pool's hosts.
"""

import contextlib
import math
import os
import re
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import msgspec

from launcher.run.durable import NOT_JSON
from launcher.run.layout import RunDir
from trainer.metrics_files import files_in, open_file, read_metrics

_LOOK_S = 0.5
_TAIL_BYTES = 4096
AT, STEP = "at", "step"
_LEAST = ("loss", "err", "error", "ppl", "perplexity", "mae", "mse", "rmse", "nll", "wer", "cer", "fid", "bpb")
_MOST = ("acc", "accuracy", "f1", "auc", "bleu", "rouge", "precision", "recall", "iou", "map", "r2", "score", "reward",
         "dice", "jaccard", "psnr", "ssim", "ndcg", "mrr", "top1", "top5", "mcc", "kappa")  # fmt: skip
_LEFT_OUT = b'"left_out":'
_NOT_FINITE = {"nan": math.nan, "inf": math.inf, "-inf": -math.inf}
_REPORTED = re.compile(r"reported\.n[0-9]+\.a([0-9]+)\.jsonl")
_PLACE = frozenset({STEP, "epoch", "world", "start", "attempt"})  # of the trainer's lines: where it is, not how it does

Row = dict[str, float]
Rows = dict[int, Row]


class _Line(msgspec.Struct):
    """A line of a file of reports: the start of a generation (only `generation` is set), or the report of one rank.
    `left_out` counts reports before it that were not stored.
    """

    generation: int | None = None
    step: int = 0
    at: float = 0.0  # Unix time
    rank: int = 0
    values: dict[str, float | str] = {}  # by metric; a number that JSON lacks is a text, such as NaN
    left_out: int = 0  # how many reports of the same metrics before it were not stored


_reports = msgspec.json.Decoder(_Line)


@dataclass(frozen=True, slots=True)
class Figure:
    """A summary of one metric of a run: its last value and its best one. `best` is None if the metric's name does not
    tell whether larger or smaller values are better, or no value is finite.
    """

    name: str
    last: float
    last_step: int
    best: float | None = None
    best_step: int | None = None


def read_rows(run: RunDir) -> Rows:
    """Return {step: {metric: value}} in order of steps; the entry `at` of a step is its Unix time, if it is known."""
    rows: Rows = {}
    for lines in _reports_by_start(run).values():
        _put(rows, lines)
    for line in read_metrics(run.metrics) if files_in(run.metrics) else ():
        rows.setdefault(line[STEP], {}).update(flat(line))
    steps = [*rows]
    return (
        rows
        if all(before < after for before, after in pairwise(steps))
        else {step: rows[step] for step in sorted(steps)}
    )


def thinned(run: RunDir) -> tuple[int, int] | None:
    """Return (reports stored, reports made) for the metrics of a rank with the most reports, or None if all of them
    were stored: agents leave out reports of long runs, but the trainer's own files have all.
    """
    if files_in(run.metrics) or not any(_LEFT_OUT in _read(path) for path in run.metrics.glob("*.jsonl")):
        return None
    lines: list[_Line] = []
    for start in _reports_by_start(run).values():
        first = min((line.step for line in start), default=math.inf)
        lines = [*(line for line in lines if line.step < first), *start]
    kept, reported = Counter[tuple[int, frozenset[str]]](), Counter[tuple[int, frozenset[str]]]()
    for line in lines:
        key = line.rank, frozenset(line.values)
        kept[key] += 1
        reported[key] += 1 + line.left_out
    most = max(reported, key=lambda key: reported[key], default=None)
    return None if most is None or kept[most] == reported[most] else (kept[most], reported[most])


def rows_of_ranks(run: RunDir) -> dict[int, Rows]:
    """Return {rank: {step: {metric: value}}} of the values that each rank reported.

    If the trainer wrote values that hold for all ranks, only these are returned, as those of rank 0.
    """
    if files_in(run.metrics):
        return {0: {line[STEP]: dict(flat(line)) for line in read_metrics(run.metrics)}}
    ranks: defaultdict[int, Rows] = defaultdict(dict)
    for lines in _reports_by_start(run).values():
        for rank in sorted({line.rank for line in lines}):
            _put(ranks[rank], [line for line in lines if line.rank == rank])
    return dict(ranks)


def newest_reported(run: RunDir, attempt: int) -> int:
    """Return the newest step for which a rank of the attempt has reported a metric, or 0.

    The run's state file may not have it yet.
    """
    steps = [0]
    for path in run.metrics.glob(run.reported(attempt, 0).name.replace(".n000.", ".n*.")):
        with contextlib.suppress(OSError), open_file(path) as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - _TAIL_BYTES))
            for line in file.read().split(b"\n")[-2:-1]:
                with contextlib.suppress(*NOT_JSON):
                    steps.append(_reports.decode(line).step)
    return max(steps)


def each_step(run: RunDir, over: Callable[[], bool]) -> Iterator[tuple[int, Row]]:
    """Yield (step, {metric: value}) once for each step, in order, and wait for further steps until no more will be
    written.

    A step is yielded once a later one is written, as more of its values may follow until then, or at the end. If it is
    repeated after a restart, it is not yielded again. `over` is called before each read, and returns whether no more
    will be written.
    """
    last, seen = -1, -1
    while True:
        whole = over()
        if (now := size(run)) != seen or whole:
            seen, rows = now, read_rows(run)
            newest = max(rows, default=-1)
            for step in [step for step in rows if step > last and (whole or step < newest)]:
                last = step
                yield step, rows[step]
        if whole:
            return
        time.sleep(_LOOK_S)


def size(run: RunDir) -> int:
    """Return the size in bytes of all files with metrics of the run, which grows with each new value."""
    sizes = 0
    for path in run.metrics.glob("*.jsonl"):
        with contextlib.suppress(OSError):
            sizes += path.stat().st_size
    return sizes


def names_in(rows: Rows) -> list[str]:
    """Return the names of all metrics, in the order in which they first appear."""
    return [name for name in dict.fromkeys(name for row in rows.values() for name in row) if name != AT]


def figures_of(rows: Rows) -> list[Figure]:
    """Return the summary of each metric in the rows: its last and its best value, with their steps. By the metric's
    name the best is the largest or the smallest finite value; it is None if the name tells neither.
    """
    values: dict[str, list[tuple[int, float]]] = {name: [] for name in names_in(rows)}
    for step, row in rows.items():
        for name, value in row.items():
            if name != AT:
                values[name].append((step, value))
    return [_figure(name, of_name) for name, of_name in values.items()]


def _figure(name: str, values: list[tuple[int, float]]) -> Figure:
    """Return the summary of a metric: its last and its best value, with their steps; no best one if all values are
    infinite or NaN, or the name does not tell whether larger or smaller is better.

    `values` are (step, value) pairs, of which the last is the newest.
    """
    last_step, last = values[-1]
    finite = [(value, step) for step, value in values if math.isfinite(value)]
    way = better(name)
    if way == 0 or not finite:
        return Figure(name, last, last_step)
    best, step = min(finite, key=lambda one: (-way * one[0], one[1]))
    return Figure(name, last, last_step, best, step)


def better(name: str) -> int:
    """Return 1 if larger values of the metric are better, -1 if smaller are, or 0 if its name does not tell."""
    words = re.split(r"[^a-z0-9]+", name.lower())
    return -1 if any(word in _LEAST for word in words) else int(any(word in _MOST for word in words))


def first_steps(run: RunDir) -> dict[tuple[int, int], int]:
    """Return the first step that was reported after each start of ranks, by (attempt, generation)."""
    return {start: min(line.step for line in lines) for start, lines in _reports_by_start(run).items() if lines}


def _reports_by_start(run: RunDir) -> dict[tuple[int, int], list[_Line]]:
    """Return the reports of all nodes, by (attempt, generation) in order."""
    starts: defaultdict[tuple[int, int], list[_Line]] = defaultdict(list)
    for path in run.metrics.glob("*.jsonl"):
        if (found := _REPORTED.fullmatch(path.name)) is None:
            continue
        attempt, lines = int(found[1]), list[_Line]()
        for line in _decoded(path):
            if line.generation is not None:
                lines = starts[attempt, line.generation]
            else:
                lines.append(line)
    return dict(sorted(starts.items()))


def _put(rows: Rows, lines: list[_Line]) -> None:
    """Add the reports of a generation to the rows. First remove the rows of earlier generations from its first reported
    step on, as these steps were repeated.

    If several ranks report a metric of a step, the value of the lowest rank counts.
    """
    if not lines:
        return
    first = min(line.step for line in lines)
    for step in [step for step in rows if step >= first]:
        del rows[step]
    if len({line.rank for line in lines}) > 1:
        lines = sorted(lines, key=lambda line: -line.rank)
    for line in lines:
        row = rows.get(line.step)
        if row is None:
            row = rows[line.step] = {}
        row[AT] = line.at
        for name, value in line.values.items():
            row[name] = value if not isinstance(value, str) else _NOT_FINITE.get(value, math.nan)


def flat(line: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, float]]:
    """Yield (name, value) for each number of a JSON object, each name with `prefix` before it; numbers in nested
    objects are called `outer/inner`. True and False are no numbers; the texts "nan", "inf" and "-inf" are.

    Without a prefix, numbers that tell where the training is (step, epoch, world, start, attempt) are left out.
    Characters that are not valid text are replaced in names.
    """
    for key, value in line.items():
        name = f"{prefix}{key.encode(errors='replace').decode()}"
        if isinstance(value, Mapping):
            yield from flat(value, f"{name}/")
        elif isinstance(value, str) and value in _NOT_FINITE:  # of a mapping; others are numbers by now
            yield name, _NOT_FINITE[value]
        elif isinstance(value, int | float) and not isinstance(value, bool) and (prefix or key not in _PLACE):
            yield name, _as_float(value)


def _as_float(value: float) -> float:
    """Return the number as a float; an integer too large for one becomes infinite, with its sign."""
    try:
        return float(value)
    except OverflowError:
        return math.inf if value > 0 else -math.inf


def _decoded(path: Path) -> Iterable[_Line]:
    """Yield the decoded valid lines of a file, skipping all others; yield none if the file cannot be read."""
    data = _read(path)
    try:
        yield from _reports.decode_lines(data)
    except NOT_JSON:
        for line in data.split(b"\n"):
            try:
                one = _reports.decode(line)
            except NOT_JSON:
                continue
            yield one


def _read(path: Path) -> bytes:
    """Return the content of the file, or b"" if it cannot be read."""
    try:
        with open_file(path) as file:
            return file.read()
    except OSError:
        return b""
