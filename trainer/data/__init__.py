"""Samples in an order that outlives kills and changes of the world, and the randomness that goes with them."""

from trainer.data.evaluation import EvalData
from trainer.data.order import Batch
from trainer.data.train import SharedPlace, TrainData

__all__ = ["Batch", "EvalData", "SharedPlace", "TrainData"]
