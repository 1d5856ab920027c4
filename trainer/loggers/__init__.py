"""Callbacks that hand the numbers of a training to others."""

from trainer.loggers.csv_file import CsvLogger

__all__ = ["CsvLogger"]
