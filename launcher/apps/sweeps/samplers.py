"""Choose Optuna's samplers and pruners by their names in a spec, and compute the points of searches that ignore
results.
"""

import warnings
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from optuna import create_study, logging, pruners, samplers
from optuna.exceptions import ExperimentalWarning

from launcher.apps.sweeps.folder import Point
from launcher.apps.sweeps.points import applies
from launcher.spec.model import Dimension, EarlyStop, SweepOptions

if TYPE_CHECKING:
    from optuna.trial import Trial

FORESEEN = ("random", "qmc")  # their points are the same whatever comes of them
_STARTUP = 10


def sampler_of(options: SweepOptions, seed: int) -> samplers.BaseSampler:
    """Return the Optuna sampler that chooses the next point."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ExperimentalWarning)
        match options.search:
            case "tpe":
                waits = (
                    options.parallel > 1 or options.stop.early == "asha"
                )  # those that are open are not the best ones
                return samplers.TPESampler(seed=seed, n_startup_trials=_STARTUP, constant_liar=waits)
            case "gp":
                return samplers.GPSampler(seed=seed, n_startup_trials=_STARTUP)
            case "cmaes":
                return samplers.CmaEsSampler(seed=seed, warn_independent_sampling=False)
            case "qmc":
                return samplers.QMCSampler(
                    seed=seed, scramble=True, warn_independent_sampling=False, warn_asynchronous_seeding=False
                )
            case _:
                return samplers.RandomSampler(seed=seed)


def pruner_of(stop: EarlyStop) -> pruners.BasePruner:
    """Return the Optuna pruner that ends trials early."""
    match stop.early:
        case "asha":
            return pruners.SuccessiveHalvingPruner(min_resource=stop.min_steps, reduction_factor=stop.factor)
        case "hyperband":
            return pruners.HyperbandPruner(min_resource=stop.min_steps, reduction_factor=stop.factor)
        case "median":
            return pruners.MedianPruner(n_warmup_steps=stop.min_steps)
        case _:
            return pruners.NopPruner()


def suggested(trial: "Trial", space: Mapping[str, Dimension]) -> Point:
    """Return the point of a trial; values that it already has stay."""
    point: dict[str, Any] = {}  # what is suggested of values is one of them
    for key, one in space.items():
        if not applies(one, point):
            continue
        if one.values:
            point[key] = trial.suggest_categorical(key, one.values)
        elif one.whole:
            point[key] = trial.suggest_int(key, int(one.low), int(one.high), step=int(one.step or 1), log=one.log)
        else:
            point[key] = trial.suggest_float(key, one.low, one.high, step=one.step, log=one.log)
    return point


def foreseen(options: SweepOptions, seed: int, count: int) -> list[Point]:
    """Return the first `count` points of a search that ignores results; a larger count begins with the same points."""
    level = logging.get_verbosity()
    logging.set_verbosity(logging.WARNING)
    try:
        study = create_study(sampler=sampler_of(options, seed))
        found = []
        for _ in range(count):
            trial = study.ask()
            found.append(suggested(trial, options.space))
            study.tell(trial, 0.0)
        return found
    finally:
        logging.set_verbosity(level)
