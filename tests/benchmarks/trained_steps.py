"""The shipped image job, or a tiny MLP in the same trainer, with a note of when each rank made which step.

Written as ddp_steps.py does."""

import argparse
import functools
import os
import sys
import time
from pathlib import Path

import tiny_mlp

from trainer.loop import Settings, Trainer
from trainer.loop.callbacks import Callback
from trainer.tasks import resnet
from trainer.tasks.command import run


class Notes(Callback):
    def __init__(self, path, step_s):
        self._fd = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        self._step_s = step_s

    def on_step(self, training):
        os.write(self._fd, f"{time.monotonic():.6f} {training.world.rank} {os.getpid()} {training.step}\n".encode())
        time.sleep(self._step_s)


def mlp(notes, folder, checkpoint_every, strategy):
    settings = Settings(
        max_steps=1_000_000_000,
        batch_size=tiny_mlp.BATCH_SIZE,
        drop_last=True,
        strategy=strategy,
        checkpoint_every=checkpoint_every,
        checkpoint_dir=folder / "checkpoints",
        out=folder / "metrics",
    )
    return Trainer(
        settings,
        model=tiny_mlp.model,
        loss=tiny_mlp.loss,
        data=tiny_mlp.data(),
        optimizer=tiny_mlp.optimizer,
        callbacks=[notes],
    ).fit()


def main():
    parser = argparse.ArgumentParser(description=__doc__, allow_abbrev=False)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--mlp", action="store_true", help="and not the image job")
    parser.add_argument("--strategy", default="ddp", help="of the MLP")
    parser.add_argument("--step-s", type=float, default=0.0, help="time that a step takes beside its work")
    parser.add_argument("--checkpoint-every", required=True)
    mine, words = parser.parse_known_args()
    folder, notes = mine.out.parent, Notes(mine.out, mine.step_s)
    if mine.mlp:
        return mlp(notes, folder, mine.checkpoint_every, mine.strategy)
    resnet.Trainer = functools.partial(Trainer, callbacks=[notes])
    folders = ["--checkpoint-dir", str(folder / "checkpoints"), "--out", str(folder / "metrics")]
    return resnet.main([*folders, "--checkpoint-every", mine.checkpoint_every, *words])


if __name__ == "__main__":
    sys.exit(run(main))
