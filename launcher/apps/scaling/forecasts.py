"""The model of each strategy and scaling, and what it makes of more ranks than were measured. Pure."""

from collections.abc import Sequence

from launcher.apps.scaling.configurations import BASELINES
from launcher.apps.scaling.findings import WEAK, ScaledRun, ScalingForecast, ScalingModel, Spread
from launcher.apps.scaling.model import Fitted, Observed, fitted

_DOUBLINGS = 3


def foretold(points: Sequence[ScaledRun]) -> tuple[tuple[ScalingModel, ...], tuple[ScalingForecast, ...]]:
    """Return models and forecasts for each strategy and scaling with at least two measured and traced numbers of
    ranks. Ranks that share cores are left out, because their slowness says nothing about more machines. Baselines are
    left out, because the model is of an all-reduce.
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
    samples, step_s = point.step_samples or 0.0, point.step_s or 1.0
    share = point.parts.communication / step_s if point.parts is not None else 0.0
    return Observed(point.ranks, [samples / rate for rate in point.rates], [share])


def _model(points: Sequence[ScaledRun], found: Fitted) -> ScalingModel:
    usual, last = found.usual, points[-1]
    sent = last.parts.bytes if last.parts is not None else 0.0
    return ScalingModel(
        last.strategy, last.scaling, tuple(one.ranks for one in points), usual.serial, usual.divided, usual.latency,
        usual.transfer, sent / usual.transfer / 1e9 if sent and usual.transfer else None, found.latency_known,
        usual.tree,
    )  # fmt: skip


def _forecast(base: ScaledRun, found: Fitted, ranks: int) -> ScalingForecast:
    times = ranks / base.ranks if base.scaling == WEAK else 1.0
    usual, low, high = found.speedup(ranks, base.ranks, times)
    return ScalingForecast(
        base.strategy, base.scaling, ranks, Spread(usual, low, high), usual * base.ranks / ranks
    )  # fmt: skip
