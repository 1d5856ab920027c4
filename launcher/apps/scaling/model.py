"""A model of a step's time, fitted to a few numbers of ranks to forecast it for others: Amdahl's law and an all-reduce,
around a ring or along a tree. It is fitted many times to resampled measurements, from which the uncertainty follows. A
point is the measurement of one strategy, scaling (strong or weak) and number of ranks. Pure. A strategy is a way to
divide a training over ranks, such as ddp or fsdp.

step(ranks) = serial + divided / ranks + hops(ranks) latency + 2 (ranks - 1) / ranks transfer

The first two terms are Amdahl's law, the others an all-reduce: around a ring with 2 (ranks - 1) hops, or along a tree
with 2 log2 ranks. The shape that fits better is taken; if both fit, each is used in half of the fits.

The length of steps alone cannot separate transfer from the first two terms, since 2 (ranks - 1) / ranks is 2 - 2 /
ranks. So the two halves are fitted separately: to the measured communication that is not hidden, and to the remaining
time. In weak scaling nothing is divided, as each rank keeps its share.
"""

import math
import random
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from launcher.apps.scaling.configurations import BASELINES, Configuration
from launcher.apps.scaling.findings import DP, WEAK, ScaledRun, ScalingForecast, ScalingModel, Spread, StepVolume

_DOUBLINGS = 3
_EACH = "each rank"
_DRAWS = 400
_TRACE_ERROR = 0.1  # of the share of communication: a trace is of a few steps
_LEAST_S = 1e-9
_MOST = 0.6
_ALIKE = 0.01  # relative errors, squared and added up, that tell a ring from no tree
_LOW, _HIGH = 0.05, 0.95


@dataclass(frozen=True, slots=True)
class Observed:
    """The measured steps on one number of ranks: the seconds of each step, and from each profiler trace that was taken
    the share of a step, from 0 to 1, that is communication not hidden behind computation.
    """

    ranks: int
    steps_s: Sequence[float]
    shares: Sequence[float]  # in each trace, the share of a step that is communication not hidden


@dataclass(frozen=True, slots=True)
class Fit:
    """A fit of the model: times in seconds, none negative, and whether its all-reduce runs along a tree.

    The time of a step is the sum of four terms, each made of one of the times.
    """

    serial: float  # independent of the number of ranks
    divided: float  # on one rank; divided by the number of ranks
    latency: float  # of one hop of the all-reduce; multiplied by the number of hops
    transfer: float  # multiplied by 2 (ranks - 1) / ranks
    tree: bool = False

    def step(self, ranks: int) -> float:
        """Return the seconds of a step on so many ranks."""
        return self.serial + self.divided / ranks + self.communication(ranks)

    def communication(self, ranks: int) -> float:
        """Return the seconds of communication that a step on so many ranks does not hide."""
        return _hops(ranks, tree=self.tree) * self.latency + 2 * (ranks - 1) / ranks * self.transfer


def _hops(ranks: int, *, tree: bool) -> float:
    """Return the number of hops of an all-reduce: along a tree with `tree`, else around a ring."""
    return 2 * math.log2(ranks) if tree else 2.0 * (ranks - 1)


@dataclass(frozen=True, slots=True)
class Fitted:
    """Many fits to resampled measurements, from which a forecast and its uncertainty follow: each fit gives a forecast,
    which is shifted by the relative error `misfit` times that fit's `noise`.

    `latency_known` is False if only one number of ranks above 1 was measured: that gives the sum of latency and
    transfer, but not each of them.
    """

    fits: Sequence[Fit]
    misfit: float  # relative error of the typical fit
    latency_known: bool
    noise: Sequence[float]  # a normally distributed random number for each fit

    @property
    def usual(self) -> Fit:
        """The typical fit: the medians of the fits with the more frequent shape of all-reduce."""
        tree = sum(one.tree for one in self.fits) > _MOST * len(self.fits)
        alike = [one for one in self.fits if one.tree == tree]
        serial, divided, latency, transfer = (
            statistics.median(getattr(one, name) for one in alike)
            for name in ("serial", "divided", "latency", "transfer")
        )
        return Fit(serial, divided, latency, transfer, tree)

    def speedup(self, ranks: int, base: int, times: float = 1.0) -> tuple[float, float, float]:
        """Return (median, 5th percentile, 95th percentile) of how many times as many samples a second `ranks` ranks
        train as `base` ranks.

        A step on `ranks` has `times` as many samples as one on `base`.
        """
        found = sorted(
            times * fit.step(base) / fit.step(ranks) * math.exp(self.misfit * noise)
            for fit, noise in zip(self.fits, self.noise, strict=True)
        )
        low, high = found[int(_LOW * len(found))], found[int(_HIGH * (len(found) - 1))]
        return statistics.median(found), low, high


def fitted(observed: Sequence[Observed], *, weak: bool) -> Fitted | None:
    """Return the fitted model, or None if fewer than two numbers of ranks were measured.

    With `weak`, each rank has the same work for any number of ranks; else the ranks share a fixed amount of work.
    """
    if len({one.ranks for one in observed}) < 2:
        return None
    draw = random.Random(0)  # noqa: S311 - drawn for a statistic
    tree = _is_tree(observed)
    fits = [_drawn(observed, tree, draw, weak=weak) for _ in range(_DRAWS)]
    known = sum(one.ranks > 1 for one in observed) > 1
    found = Fitted(fits, 0.0, known, [draw.gauss(0, 1) for _ in fits])
    usual = found.usual
    off = [math.log(usual.step(one.ranks) / statistics.median(one.steps_s)) for one in observed]
    free = max(1, len(off) - 2)
    return Fitted(fits, math.sqrt(sum(one * one for one in off) / free), known, found.noise)


def _drawn(observed: Sequence[Observed], tree: bool | None, draw: random.Random, *, weak: bool) -> Fit:
    """Return one fit to a random sample of the measurements: for each number of ranks, as many of its steps as were
    measured, drawn with replacement.

    `tree` says whether the all-reduce is along a tree or around a ring; None chooses one at random. With `weak`, each
    rank keeps its share of the work.
    """
    works, talks = [], []
    for one in observed:
        step = statistics.fmean(draw.choices(one.steps_s, k=len(one.steps_s)))
        share = draw.choice(one.shares) * (1 + draw.gauss(0, _TRACE_ERROR)) if one.shares else 0.0
        talk = step * min(1.0, max(0.0, share))
        works.append((1.0, 0.0 if weak else 1 / one.ranks, step - talk))
        if one.ranks > 1:
            talks.append((one.ranks, talk))
    shape = draw.random() < 0.5 if tree is None else tree
    return Fit(*least_squares(works), *_all_reduce(talks, shape, draw), shape)


def _all_reduce(talks: Sequence[tuple[int, float]], tree: bool, draw: random.Random) -> tuple[float, float]:
    """Return (latency per hop, transfer time) in seconds, fitted to `talks`: (number of ranks, seconds of
    communication).

    With `tree`, the all-reduce runs along a tree, else around a ring. One measurement does not determine two numbers:
    `draw` then divides its time between them at random.
    """
    rows = _rows(talks, tree=tree)
    if len(rows) == 1:  # which of both it is nobody knows
        [(of_latency, of_transfer, talk)] = rows
        part = draw.random()
        return part * talk / of_latency, (1 - part) * talk / of_transfer
    return least_squares(rows)


def _is_tree(observed: Sequence[Observed]) -> bool | None:
    """Return whether an all-reduce along a tree fits the measurements better than one around a ring; None if the sums
    of squares of the relative errors of both fits differ by less than `_ALIKE`.
    """
    talks = [(one.ranks, statistics.median(one.steps_s) * statistics.fmean(one.shares or [0.0])) for one in observed]
    ring, tree = (_rows([one for one in talks if one[0] > 1], tree=shape) for shape in (False, True))
    gain = _off(ring, *least_squares(ring)) - _off(tree, *least_squares(tree))
    return None if abs(gain) < _ALIKE else gain > 0


def _rows(talks: Sequence[tuple[int, float]], *, tree: bool) -> list[tuple[float, float, float]]:
    """Return (hops, transfers, seconds) for each measurement in `talks`, (number of ranks, seconds of communication).

    In the model, an all-reduce takes hops times the latency of a message plus transfers times the time to send the
    gradients once; `seconds` is what it took.
    """
    return [(_hops(n, tree=tree), 2 * (n - 1) / n, talk) for n, talk in talks]


def least_squares(rows: Sequence[tuple[float, float, float]]) -> tuple[float, float]:
    """Return (a, b), neither negative, for which a x + b y is closest to z in all rows (x, y, z), by relative error."""
    weighed = [(x / z, y / z) for x, y, z in rows if z > _LEAST_S]
    if not weighed:
        return 0.0, 0.0
    xx, yy = sum(x * x for x, _ in weighed), sum(y * y for _, y in weighed)
    xy, sx, sy = sum(x * y for x, y in weighed), sum(x for x, _ in weighed), sum(y for _, y in weighed)
    determinant = xx * yy - xy * xy
    alone = [(sx / xx if xx else 0.0, 0.0), (0.0, sy / yy if yy else 0.0)]
    if determinant > 1e-12 * xx * yy:
        a, b = (sx * yy - sy * xy) / determinant, (sy * xx - sx * xy) / determinant
        if a >= 0 and b >= 0:
            return a, b
    return min(alone, key=lambda one: _off(rows, *one))


def _off(rows: Sequence[tuple[float, float, float]], a: float, b: float) -> float:
    """Return the sum of the squared relative errors of a x + b y against z over the rows (x, y, z); rows whose z is
    almost 0 are left out.
    """
    return sum(((a * x + b * y) / z - 1) ** 2 for x, y, z in rows if z > _LEAST_S)


def volume_of(strategy: str, one: Configuration, model_bytes: float) -> StepVolume | None:
    """Return the bytes that a step of the configuration `one` moves by the formula of `strategy`, for parameters of
    `model_bytes` bytes.

    Return None if it moves none, or the strategy has no known formula.
    """
    n = one.ranks
    if n == 1 or not model_bytes:
        return None
    ring = (n - 1) / n  # once round: all ranks take in what they have not
    match strategy:
        case "dp" | "master":
            who = "the first GPU" if strategy == DP else "the first rank"
            return StepVolume(who, "(n - 1) P", (n - 1) * model_bytes, model_bytes)
        case "ddp" | "zero2":  # gradients are summed and dealt out; then they, or parameters, are gathered
            return StepVolume(_EACH, "2 (n - 1) / n P", 2 * ring * model_bytes, model_bytes)
        case "zero1" | "fsdp":  # and parameters are gathered once more: what was updated, or for the backward pass
            return StepVolume(_EACH, "3 (n - 1) / n P", 3 * ring * model_bytes, model_bytes)
        case "hsdp":
            shards, copies = one.per_node, one.nodes
            moved = 3 * (shards - 1) / shards + 2 * (copies - 1) / copies / shards
            formula = "3 (s - 1) / s P + 2 (c - 1) / c P / s, of c nodes of s ranks"
            return StepVolume(_EACH, formula, moved * model_bytes, model_bytes)
        case _:
            return None


def foretold(points: Sequence[ScaledRun]) -> tuple[tuple[ScalingModel, ...], tuple[ScalingForecast, ...]]:
    """Return a model for each strategy and scaling that was measured and traced on at least two numbers of ranks, and
    its forecasts for 2, 4 and 8 times the largest of these: (all models, all forecasts).

    Measurements of ranks that share cores are left out, since their speed tells nothing about more machines. So are
    the strategies dp, master and mp, which are only measured for comparison, since the model assumes an all-reduce.
    """
    models, forecasts = list[ScalingModel](), list[ScalingForecast]()
    for strategy, scaling in dict.fromkeys((one.strategy, one.scaling) for one in points):
        if strategy in BASELINES:
            continue
        mine = [one for one in points if (one.strategy, one.scaling) == (strategy, scaling)]
        some = [one for one in mine if one.parts is not None and one.step_samples and not one.crowded]
        found = fitted([_observed(one) for one in some], weak=scaling == WEAK)
        if found is not None:
            models.append(_model(some, found))
            most = max(one.ranks for one in some)
            forecasts += [_forecast(some[0], found, most * 2**times) for times in range(1, _DOUBLINGS + 1)]
    return tuple(models), tuple(forecasts)


def _observed(point: ScaledRun) -> Observed:
    """Return the seconds of a point's measured steps, and their share of communication that is not hidden behind
    computation, 0 if no step was traced.
    """
    samples, step_s = point.step_samples or 0.0, point.step_s or 1.0
    share = point.parts.communication / step_s if point.parts is not None else 0.0
    return Observed(point.ranks, [samples / rate for rate in point.rates], [share])


def _model(points: Sequence[ScaledRun], found: Fitted) -> ScalingModel:
    """Return the model fitted to `points`, which are of one strategy and scaling, in the form of the report."""
    usual, last = found.usual, points[-1]
    sent = last.parts.bytes if last.parts is not None else 0.0
    return ScalingModel(
        last.strategy, last.scaling, tuple(one.ranks for one in points), usual.serial, usual.divided, usual.latency,
        usual.transfer, sent / usual.transfer / 1e9 if sent and usual.transfer else None, found.latency_known,
        usual.tree,
    )  # fmt: skip


def _forecast(base: ScaledRun, found: Fitted, ranks: int) -> ScalingForecast:
    """Return the model's forecast for `ranks`, as a speed-up over the point `base`."""
    times = ranks / base.ranks if base.scaling == WEAK else 1.0
    usual, low, high = found.speedup(ranks, base.ranks, times)
    return ScalingForecast(
        base.strategy, base.scaling, ranks, Spread(usual, low, high), usual * base.ranks / ranks
    )  # fmt: skip
