"""Trainings that ship, each a module to run: `python -m trainer.tasks.resnet --strategy ddp`."""
