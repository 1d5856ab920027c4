"""A small training with everything that could go wrong in a resume, which writes down who saw which sample when."""

import json
import os
import sys
import time
from argparse import ArgumentParser
from pathlib import Path

import torch
from torch import nn
from torch.utils.data import Dataset

from trainer import Settings, Trainer
from trainer.loop import Callback

SAMPLES = 96


class Points(Dataset):
    """A data set of each sample's number and a noisy point; torch's own generator draws the noise."""

    def __len__(self):
        return SAMPLES

    def __getitem__(self, index):
        point = torch.randn(8, generator=torch.Generator().manual_seed(index))
        return index, point + 0.1 * torch.randn(8), float(point.sum() > 0)


class Diary(Callback):
    file = None  # the pass that settles DDP's buckets comes before the start, and counts for nothing

    def on_start(self, training):
        self.training = training
        who = f"{os.environ['LAUNCH_ATTEMPT']}.{os.environ['LAUNCH_GENERATION']}"
        folder = Path(os.environ["LAUNCH_RUN_DIR"]) / "diary"
        folder.mkdir(exist_ok=True)
        self.file = open(folder / f"{who}.{os.environ['RANK']}", "a", buffering=1)

    def saw(self, indices):
        if self.file is not None:
            self.file.write(json.dumps([self.training.step + 1, indices.tolist()]) + "\n")


def is_held(path, step):
    """A file with a number holds the ranks at that step: what a test does meanwhile may take its time."""
    try:
        with open(path or "") as file:
            return step >= int(file.read())
    except FileNotFoundError:
        return False


def main():
    parser = ArgumentParser()
    parser.add_argument("--strategy", default="ddp")
    parser.add_argument("--epochs", type=int, default=6)
    parser.add_argument("--pause", type=float, default=0.0)
    parser.add_argument("--hold", help="a file; while a number is in it no rank goes on from that step")
    parser.add_argument("--workers", type=int, default=0)
    args = parser.parse_args()
    torch.set_num_threads(1)
    diary = Diary()

    def loss(model, batch):
        indices, points, wanted = batch
        if model.training:
            diary.saw(indices)
            time.sleep(args.pause)
            while diary.file is not None and is_held(args.hold, diary.training.step):
                time.sleep(0.02)
        return nn.functional.binary_cross_entropy_with_logits(model(points).squeeze(1), wanted.float())

    def model():
        return nn.Sequential(nn.Linear(8, 33), nn.LayerNorm(33), nn.ReLU(), nn.Dropout(0.2), nn.Linear(33, 1))

    settings = Settings(
        max_epochs=args.epochs,
        batch_size=12,
        accumulate=2 if os.environ["WORLD_SIZE"] in ("1", "2", "3") else 1,
        strategy=args.strategy,
        clip_norm=1.0,
        workers=args.workers,
        log_every=1,
        validate_every="epoch",
        keep_best=True,
        patience=100,
    )
    trainer = Trainer(
        settings,
        model=model,
        loss=loss,
        data=Points(),
        validation=Points(),
        optimizer=lambda parameters: torch.optim.AdamW(parameters, lr=0.01),
        schedule=lambda optimizer, steps: torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 48),
        callbacks=[diary],
    )
    return trainer.fit()


if __name__ == "__main__":
    sys.exit(main())
