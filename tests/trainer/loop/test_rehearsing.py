"""A process in reserve has rehearsed: its numbers are those of one that was begun when it was needed."""

import os
import random

import numpy as np
import pytest
import torch
from tiny_training import Noisy, run_tiny
from torch import nn
from torch.utils.data import Dataset

from launcher.node.ranks.control import ControlPipe, control_of
from trainer.checkpoint.generators import seed_all


class Draws(nn.Module):
    """A model whose parts are drawn, and not by torch."""

    def __init__(self):
        super().__init__()
        self.order, self.factor = random.sample(range(4), 4), 1 + np.random.rand()  # noqa: NPY002 - the global one
        self.layers = nn.Sequential(nn.Linear(4, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 2))

    def forward(self, x):
        return self.layers(self.factor * x[:, self.order])


class Counts(Draws):
    """Knows how often it was called, in ways that no checkpoint has."""

    def __init__(self):
        super().__init__()
        self.calls = 0
        self.register_buffer("seen", torch.zeros(4), persistent=False)

    def forward(self, x):
        self.calls += 1
        self.seen = 0.9 * self.seen + 0.1 * x.detach().mean(0)
        return super().forward(x + 0.01 * self.calls + self.seen)


class Draining(Dataset):
    """A data set whose noise can be read once."""

    def __init__(self):
        self.samples, self.noise = Noisy(), iter(np.random.default_rng(1).normal(0, 0.1, 10_000))

    def __len__(self):
        return len(self.samples)

    def __getitem__(self, index):
        x, y = self.samples[index]
        return x + next(self.noise), y


@pytest.fixture
def in_reserve(tmp_path, monkeypatch):
    """Let a training find itself in reserve, and become a rank as soon as it waits."""
    pipes = []

    def begin():
        fifo = tmp_path / "reserve-001"
        os.mkfifo(fifo)
        pipes.append(ControlPipe(control_of(fifo)))
        monkeypatch.setenv("LAUNCH_RESERVE", str(fifo))
        log = str(tmp_path / "log")
        pipes[0].send({"generation": 2, "log": log, "log_before": log, "environment": {}}, at_step_end=False)

    yield begin
    for pipe in pipes:
        pipe.close()


@pytest.mark.parametrize("steps", [0, 4])
@pytest.mark.parametrize(("model", "data"), [(Draws, Noisy), (Counts, Noisy), (Draws, Draining)])
def test_the_weights_are_those_of_a_process_that_was_not_in_reserve(tmp_path, in_reserve, model, data, steps):
    """After no step there is no checkpoint to load."""
    ends = []
    for folder in ("without", "with"):

        def train_to(step, folder=folder):
            settings = {"max_epochs": None, "max_steps": step}
            return run_tiny(tmp_path / folder, settings, model=model, data=data(), schedule=None)

        if steps:
            train_to(steps)
        seed_all(len(folder))  # as the script may have left them
        if folder == "with":
            in_reserve()
        ends.append(train_to(8))
    assert ends[0] == ends[1]
    assert "LAUNCH_RESERVE" not in os.environ
