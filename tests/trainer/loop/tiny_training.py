"""A training of milliseconds with everything in it that could go wrong at a restart, and ways to disturb it."""

import faulthandler
import os
import random
import signal
import time
from pathlib import Path

import torch
from torch import nn
from torch.optim.lr_scheduler import OneCycleLR
from torch.utils.data import Dataset, IterableDataset

from trainer.checkpoint_files import catalog
from trainer.loop import Callback, Settings, Trainer, read_metrics

SAMPLES = 88


class Noisy(Dataset):
    """Points of a curve, each time with a little noise: augmentation draws from the generators."""

    def __init__(self, count=SAMPLES, noise=0.05):
        generator = torch.Generator().manual_seed(5)
        self.x = torch.rand(count, 4, generator=generator)
        self.y = (self.x.sum(1) > 2).long()
        self.noise = noise

    def __len__(self):
        return len(self.x)

    def __getitem__(self, index):
        noise = self.noise * torch.randn(4) + 0.01 * random.random() if self.noise else 0.0
        return self.x[index] + noise, self.y[index]


class Torn(Noisy):
    """Some samples are not numbers: those that are divided by zero."""

    def __init__(self, torn):
        super().__init__(noise=0.0)
        self.torn = torn

    def __getitem__(self, index):
        x, y = super().__getitem__(index)
        return (x / 0.0 if index in self.torn else x), y


class Stream(IterableDataset):
    """A stream that keeps its place; how long it is, it does not say."""

    def __init__(self, shards_itself=False):
        self.data, self.at, self.shards_itself = Noisy(), 0, shards_itself

    def __iter__(self):
        rank, size = (int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])) if self.shards_itself else (0, 1)
        while self.at < SAMPLES:
            index, self.at = self.at, self.at + 1
            if index % size == rank:
                yield self.data[index]
        self.at = 0

    def state_dict(self):
        return {"at": self.at}

    def load_state_dict(self, state):
        self.at = state["at"]


class InShards:
    """A stream in shards, of which each number of ranks reads its own."""

    shards = 8

    def __init__(self):
        self.data = Noisy()

    def read_shard(self, shard, *, start, seed):
        order = random.Random(seed).sample(range(shard, SAMPLES, self.shards), SAMPLES // self.shards)
        yield from (self.data[index] for index in order[start:])


def make_model():
    return nn.Sequential(nn.Linear(4, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Dropout(0.2), nn.Linear(16, 2))


def loss_of(model, batch):
    x, y = batch
    return nn.functional.cross_entropy(model(x), y)


def hits(model, batch):
    x, y = batch
    return {"accuracy": (model(x).argmax(1) == y).sum()}


def one_cycle(optimizer, total_steps):
    # ZeroRedundancyOptimizer does not say that it has momentum.
    return OneCycleLR(optimizer, 0.02, total_steps=total_steps, cycle_momentum="betas" in optimizer.defaults)


class Steps(Callback):
    """Counts steps over all starts."""

    def __init__(self):
        self.steps = self.epochs = 0

    def on_step(self, training):
        self.steps += 1

    def on_epoch(self, training):
        self.epochs += 1

    def state_dict(self):
        return {"steps": self.steps, "epochs": self.epochs}

    def load_state_dict(self, state):
        self.steps, self.epochs = state["steps"], state["epochs"]


class Disturb(Callback):
    """Sends one rank a signal: after a step, or in the n-th micro-batch or validation batch of a start.

    Once: the next start is left alone.
    """

    def __init__(self, folder, number, rank=0, step=None, micro=None, validation=None):
        self.mark = Path(folder) / f"disturbed-{number}-{rank}-{step}-{micro}-{validation}"
        self.number, self.rank, self.step, self.micro, self.validation = number, rank, step, micro, validation
        self.seen = {"micro": 0, "validation": 0}
        self.armed = False

    def on_step(self, training):
        if training.step == self.step:
            self.send()

    def around(self, kind, function):
        """The user's function, disturbed."""

        def called(model, batch):
            if model.training == (kind == "micro"):
                self.seen[kind] += 1
                if self.seen[kind] == getattr(self, kind):
                    self.send()
            return function(model, batch)

        return called

    def send(self):
        if self.armed and int(os.environ["RANK"]) == self.rank and not self.mark.exists():
            self.mark.touch()
            os.kill(os.getpid(), self.number)


class Saved(Callback):
    """Waits at a step until there is a checkpoint: whoever is killed later has one to go on from."""

    def __init__(self, folder, step):
        self.folder, self.step = Path(folder) / "checkpoints", step

    def on_step(self, training):
        until = time.monotonic() + 150
        while training.step == self.step and not catalog.entries(self.folder):
            assert time.monotonic() < until, "nothing was saved"
            time.sleep(0.005)


class Slow(Callback):
    """Steps that take their time, so that whoever disturbs them from outside meets them."""

    def on_step(self, training):
        time.sleep(0.01)


def settings_for(folder, **changes):
    values = {
        "max_epochs": 9,
        "batch_size": 16,
        "accumulate": 2,
        "clip_norm": 1.0,
        "seed": 3,
        "log_every": 1,
        "checkpoint_every": "4 steps",
        "checkpoint_dir": Path(folder) / "checkpoints",
        "out": Path(folder) / "metrics",
        "device": "cpu",
    }
    return Settings(**{**values, **changes})


def run_tiny(folder, settings=None, disturb=(), **parts):
    """Train, or go on training, on this rank: exit code, fingerprint, and what the counter has counted."""
    steps = Steps()
    disturbances = [Disturb(folder, **one) for one in disturb]
    # One a start: a kill might come before the ranks have agreed on the stop that was asked for.
    for one in [one for one in disturbances if not one.mark.exists()][:1]:
        one.armed = True
    loss, metrics = parts.pop("loss", loss_of), parts.pop("metrics", hits)
    for one in disturbances:
        loss, metrics = one.around("micro", loss), one.around("validation", metrics)
    given = {
        "model": make_model,
        "loss": loss,
        "data": Noisy(),
        "validation": Noisy(33, noise=0.0),
        "metrics": metrics,
        "optimizer": lambda parameters: torch.optim.AdamW(parameters, lr=0.02),
        "schedule": one_cycle,
        "callbacks": [steps, *disturbances, *parts.pop("callbacks", ())],
    }
    trainer = Trainer(settings_for(folder, **(settings or {})), **{**given, **parts})
    faulthandler.dump_traceback_later(60, file=2)  # a rank that hangs says where
    try:
        code = trainer.fit()
    finally:
        faulthandler.cancel_dump_traceback_later()  # a process forked beside its thread would wait for that for ever
    return {"code": code, "fingerprint": trainer.fingerprint, "steps": steps.steps, "epochs": steps.epochs}


def history(folder):
    """Return the metrics of each step, without those that depend on time."""
    timed = ("samples_per_s", "seconds", "elapsed_s", "own_seconds", "slowest_rank", "slow_rank", "memory_gb")
    timed += ("flops_per_s", "mfu")
    return [
        {key: value for key, value in line.items() if key not in timed} for line in read_metrics(folder / "metrics")
    ]


TERM, KILL = int(signal.SIGTERM), int(signal.SIGKILL)
