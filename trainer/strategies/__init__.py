"""How the ranks of a training share the work: one word in the settings, one object for the loop."""

from trainer.strategies.build import Asked, build, build_to_ask, summary
from trainer.strategies.optimizers import Optimizers
from trainer.strategies.parameters import Parameters
from trainer.strategies.precision import warn_of_low_weights
from trainer.strategies.recompute import KEPT, repetitions_told
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
from trainer.strategies.turns import Turns, refuse_to_turn
from trainer.strategies.undrawn import is_undrawn, made_undrawn

__all__ = [
    "KEPT",
    "NAMES",
    "PARTITIONED",
    "PRECISIONS",
    "REPLICAS",
    "SHARDS",
    "Asked",
    "Choice",
    "Optimizers",
    "Parameters",
    "Strategy",
    "StrategySettings",
    "Turns",
    "build",
    "build_to_ask",
    "is_undrawn",
    "made_undrawn",
    "needs_group",
    "number_of",
    "refuse_to_turn",
    "repetitions_told",
    "summary",
    "warn_of_low_weights",
]
