"""The training loop: Trainer, its settings, callbacks and metrics."""

from trainer.loop.callbacks import Callback
from trainer.loop.lr_finder import learning_rate_finder
from trainer.loop.monitors import BestModel, EarlyStopping
from trainer.loop.progress import Training
from trainer.loop.settings import Settings, add_options, from_options
from trainer.loop.trainer import Trainer
from trainer.metrics_files import read_metrics

__all__ = [
    "BestModel",
    "Callback",
    "EarlyStopping",
    "Settings",
    "Trainer",
    "Training",
    "add_options",
    "from_options",
    "learning_rate_finder",
    "read_metrics",
]
