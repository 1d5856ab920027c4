"""A ResNet small enough for a test, on drawn images. A step takes two seconds while the file `--brake` exists."""

import sys
import time
from argparse import ArgumentParser
from itertools import pairwise
from pathlib import Path

import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812 - its usual name

from trainer import Settings, Trainer
from trainer.loop import Callback
from trainer.tasks.stripes import CLASSES, Stripes

STEP_S = 2.0


class Brake(Callback):
    def __init__(self, file):
        self._file = file

    def on_step(self, training):
        if self._file.exists():
            time.sleep(STEP_S)


class Block(nn.Module):
    def __init__(self, width, wider):
        super().__init__()
        stride = wider // width
        self.first = nn.Conv2d(width, wider, 3, stride, padding=1, bias=False)
        self.second = nn.Conv2d(wider, wider, 3, padding=1, bias=False)
        self.norms = nn.ModuleList(nn.BatchNorm2d(wider) for _ in range(2))
        self.beside = nn.Conv2d(width, wider, 1, stride, bias=False) if stride > 1 else nn.Identity()

    def forward(self, images):
        middle = F.relu(self.norms[0](self.first(images)))
        return F.relu(self.norms[1](self.second(middle)) + self.beside(images))


def model():
    widths = [16, 16, 32, 64]
    blocks = [Block(width, wider) for width, wider in pairwise(widths)]
    return nn.Sequential(
        nn.Conv2d(3, 16, 3, padding=1), *blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, CLASSES)
    )


def loss(model, batch):
    images, labels = batch
    return F.cross_entropy(model(images), labels)


def main():
    parser = ArgumentParser()
    parser.add_argument("--steps", type=int)
    parser.add_argument("--brake", type=Path)
    parser.add_argument("--lr", type=float, default=0.05)
    args = parser.parse_args()
    torch.set_num_threads(1)
    trainer = Trainer(
        Settings(max_steps=args.steps, batch_size=8, strategy="ddp", seed=3, deterministic=True),
        model=model,
        loss=loss,
        data=Stripes(1200, seed=3, pixels=16, augment=True),
        optimizer=lambda parameters: torch.optim.SGD(parameters, lr=args.lr, momentum=0.9),
        callbacks=[Brake(args.brake)],
    )
    return trainer.fit()


if __name__ == "__main__":
    sys.exit(main())
