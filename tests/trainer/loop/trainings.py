"""Trainings that run nothing, for callbacks."""

import torch

from trainer.loop.progress import Training
from trainer.loop.settings import Settings
from trainer.world import World


def idle_training(step=0, said=None, total_steps=None, **settings):
    """A training as a callback sees it; what it says goes to the list `said`."""
    world = World(0, 1, 0, 1, torch.device("cpu"))
    say = said.append if said is not None else print
    training = Training(Settings(**{"max_steps": 100, **settings}), world, None, say, total_steps=total_steps)  # type: ignore[arg-type] # no strategy
    training.progress.step = step
    return training
