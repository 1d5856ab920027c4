"""The shipped image job, or a tiny MLP in the same trainer, with a note of when each rank made which step.

Written as ddp_steps.py does."""

import argparse
import functools
import os
import sys
import time
from pathlib import Path

import torch
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.data import TensorDataset

from trainer.loop import Settings, Trainer
from trainer.loop.callbacks import Callback
from trainer.tasks import resnet
from trainer.tasks.command import run

_INPUTS, _CLASSES, _SAMPLES = 32, 10, 8192


class Notes(Callback):
    def __init__(self, path):
        self._fd = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)

    def on_step(self, training):
        os.write(self._fd, f"{time.monotonic():.6f} {training.world.rank} {os.getpid()} {training.step}\n".encode())


def mlp(notes, folder, checkpoint_every, strategy):
    chance = torch.Generator().manual_seed(2)
    inputs = torch.randn(_SAMPLES, _INPUTS, generator=chance)
    settings = Settings(
        max_steps=1_000_000_000,
        batch_size=32,
        drop_last=True,
        strategy=strategy,
        checkpoint_every=checkpoint_every,
        checkpoint_dir=folder / "checkpoints",
        out=folder / "metrics",
    )
    return Trainer(
        settings,
        model=lambda: nn.Sequential(nn.Linear(_INPUTS, 64), nn.ReLU(), nn.Linear(64, _CLASSES)),
        loss=lambda model, batch: cross_entropy(model(batch[0]), batch[1]),
        data=TensorDataset(inputs, torch.randint(0, _CLASSES, (_SAMPLES,), generator=chance)),
        optimizer=lambda parameters: torch.optim.SGD(parameters, lr=1e-3, momentum=0.9),
        callbacks=[notes],
    ).fit()


def main():
    parser = argparse.ArgumentParser(description=__doc__, allow_abbrev=False)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--mlp", action="store_true", help="and not the image job")
    parser.add_argument("--strategy", default="ddp", help="of the MLP")
    parser.add_argument("--checkpoint-every", required=True)
    mine, words = parser.parse_known_args()
    folder, notes = mine.out.parent, Notes(mine.out)
    if mine.mlp:
        return mlp(notes, folder, mine.checkpoint_every, mine.strategy)
    resnet.Trainer = functools.partial(Trainer, callbacks=[notes])
    folders = ["--checkpoint-dir", str(folder / "checkpoints"), "--out", str(folder / "metrics")]
    return resnet.main([*folders, "--checkpoint-every", mine.checkpoint_every, *words])


if __name__ == "__main__":
    sys.exit(run(main))
