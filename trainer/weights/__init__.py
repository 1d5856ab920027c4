"""Load weights that another program saved, from every usual kind of file."""

from trainer.weights.loading import Taken, load_weights

__all__ = ["Taken", "load_weights"]
