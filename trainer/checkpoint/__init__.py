"""Exact, verified, asynchronous checkpoints of a training on any number of ranks."""

from trainer.checkpoint.checkpointer import Checkpointer
from trainer.checkpoint.models import load_model

__all__ = ["Checkpointer", "load_model"]
