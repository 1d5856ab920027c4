"""A small training with the loggers of both services as they are: FOLDER STEPS [KILL].

After step KILL, when all has been handed over and a checkpoint is there, it is killed with what it has started.
"""

import os
import signal
import sys
import time
from pathlib import Path

import torch

from trainer.checkpoint_files import catalog
from trainer.loggers import MlflowLogger, WandbLogger
from trainer.loop import Callback, Settings, Trainer


class Killed(Callback):
    def __init__(self, folder, step, loggers):
        self.folder, self.step, self.loggers = folder, step, loggers

    def on_step(self, training):
        if training.step != self.step:
            return
        until = time.monotonic() + 120
        senders = [logger._sender for logger in self.loggers]
        while any(one._waiting for one in senders) or not catalog.entries(self.folder):
            assert time.monotonic() < until, "not handed over"
            time.sleep(0.005)
        children = " ".join(path.read_text() for path in Path("/proc/self/task").glob("*/children"))
        for pid in [*map(int, children.split()), os.getpid()]:
            os.kill(pid, signal.SIGKILL)


def main(folder, steps, kill=0):
    data = [(torch.full((4,), number / 8), torch.tensor(number % 2)) for number in range(8)]
    loggers = [WandbLogger("tiny", mode="offline"), MlflowLogger(tracking_uri=f"file:{folder}/mlruns")]
    Trainer(
        Settings(
            max_steps=int(steps), batch_size=4, log_every=1, validate_every=2, checkpoint_every="3 steps", device="cpu",
            checkpoint_dir=folder / "checkpoints", out=folder / "metrics",
        ),
        model=torch.nn.Linear(4, 2),
        loss=lambda model, batch: torch.nn.functional.cross_entropy(model(batch[0]), batch[1]),
        data=data,
        validation=data,
        optimizer=torch.optim.AdamW,
        callbacks=[*loggers, Killed(folder / "checkpoints", int(kill), loggers)],
    ).fit()  # fmt: skip


if __name__ == "__main__":
    main(Path(sys.argv[1]), *sys.argv[2:])
