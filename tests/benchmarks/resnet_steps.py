"""The shipped image job, with a note of when each rank made which step, as ddp_steps.py writes them."""

import argparse
import functools
import os
import sys
import time
from pathlib import Path

from trainer.loop import Trainer
from trainer.loop.callbacks import Callback
from trainer.tasks import resnet
from trainer.tasks.command import run


class Notes(Callback):
    def __init__(self, path):
        self._fd = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)

    def on_step(self, training):
        os.write(self._fd, f"{time.monotonic():.6f} {training.world.rank} {os.getpid()} {training.step}\n".encode())


def main():
    parser = argparse.ArgumentParser(description=__doc__, allow_abbrev=False)
    parser.add_argument("--out", type=Path, required=True)
    mine, words = parser.parse_known_args()
    folder = mine.out.parent
    resnet.Trainer = functools.partial(Trainer, callbacks=[Notes(mine.out)])
    return resnet.main(["--checkpoint-dir", str(folder / "checkpoints"), "--out", str(folder / "metrics"), *words])


if __name__ == "__main__":
    sys.exit(run(main))
