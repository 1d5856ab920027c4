"""The strategies by which ranks share a training's work: a name in the settings, and one object for the loop."""

from trainer.strategies.build import EvaluatedModel, build, build_for_evaluation, summary
from trainer.strategies.deferred_init import is_deferred, make_deferred
from trainer.strategies.optimizers import Optimizers
from trainer.strategies.parameters import Parameters
from trainer.strategies.precision import warn_of_low_weights
from trainer.strategies.recompute import KEPT, reporting_repetitions
from trainer.strategies.settings import (
    NAMES,
    PARTITIONED,
    PRECISIONS,
    REPLICAS,
    SHARDS,
    Choice,
    StrategySettings,
    needs_group,
)
from trainer.strategies.strategy import Strategy, number_of
from trainer.strategies.turns import Turns, refuse_own_step

__all__ = [
    "KEPT",
    "NAMES",
    "PARTITIONED",
    "PRECISIONS",
    "REPLICAS",
    "SHARDS",
    "Choice",
    "EvaluatedModel",
    "Optimizers",
    "Parameters",
    "Strategy",
    "StrategySettings",
    "Turns",
    "build",
    "build_for_evaluation",
    "is_deferred",
    "make_deferred",
    "needs_group",
    "number_of",
    "refuse_own_step",
    "reporting_repetitions",
    "summary",
    "warn_of_low_weights",
]
