"""Callbacks that write metrics to CSV, MLflow and Weights & Biases."""

from trainer.loggers.csv_file import CsvLogger
from trainer.loggers.mlflow_run import MlflowLogger
from trainer.loggers.wandb_run import WandbLogger

__all__ = ["CsvLogger", "MlflowLogger", "WandbLogger"]
