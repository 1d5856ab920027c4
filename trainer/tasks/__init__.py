"""Trainings that come with launch, each a module to run: `python -m trainer.tasks.resnet --strategy ddp`."""
