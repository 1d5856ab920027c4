"""Load weights that others have trained, from every usual kind of file."""

from trainer.weights.loading import Taken, load_weights

__all__ = ["Taken", "load_weights"]
