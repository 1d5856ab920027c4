"""Callbacks that hand the numbers of a training to others."""

from trainer.loggers.csv_file import CsvLogger
from trainer.loggers.mlflow_run import MlflowLogger
from trainer.loggers.wandb_run import WandbLogger

__all__ = ["CsvLogger", "MlflowLogger", "WandbLogger"]
