"""Trainings that are included, each a module to run: `python -m trainer.tasks.resnet --strategy ddp`."""
