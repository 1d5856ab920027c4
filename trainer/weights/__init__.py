"""Weights that others have trained, into a model: from every kind of file in which they are kept."""

from trainer.weights.loading import Taken, load_weights

__all__ = ["Taken", "load_weights"]
