"""Samples in an order, and with random numbers, that stay the same after kills and with another number of ranks."""

from trainer.data.evaluation import EvalData
from trainer.data.order import Batch
from trainer.data.train import SharedPlace, TrainData

__all__ = ["Batch", "EvalData", "SharedPlace", "TrainData"]
