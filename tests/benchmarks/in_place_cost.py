"""Measure how much CPU time `recovery: {mode: hot}` adds to each step of a training.

With this option, when one rank is lost, the other ranks keep their processes and send their state to its replacement.
So that they can, each rank saves its own state, such as its random generators, to a file in memory at every step. The
figures are the cost of this in a training without faults.

The same training on two ranks, one thread each, with the option and without it in turn. What counts is the CPU time of
a rank, so that other work on the machine matters little. A step is the median of one training's; what is shown is the
median over the pairs.
"""

import os
import statistics
import tempfile
import time
from pathlib import Path

import torch
from replica import Ranks, spread
from results import benchmark_parser, publish
from torch import nn
from torch.utils.data import Dataset
from torchvision.models import resnet18

from trainer import Settings, Trainer
from trainer.loop import Callback

LIMIT_S = 900.0


class Pictures(Dataset):
    def __len__(self):
        return 4096

    def __getitem__(self, index):
        generator = torch.Generator().manual_seed(index)
        return torch.randn(3, 32, 32, generator=generator), index % 10


class Laps(Callback):
    """Records the CPU time of each step."""

    def __init__(self):
        self.times, self.began = [], time.process_time()

    def on_step(self, training):
        now = time.process_time()
        self.times.append(now - self.began)
        self.began = now


def mlp():
    width = 1024
    hidden = [layer for _ in range(6) for layer in (nn.Linear(width, width), nn.ReLU())]
    return nn.Sequential(nn.Flatten(), nn.Linear(3072, width), *hidden, nn.Linear(width, 10))


def linear():
    return nn.Sequential(nn.Flatten(), nn.Linear(3072, 10))


JOBS = {"linear": (linear, 32), "mlp": (mlp, 128), "resnet18": (lambda: resnet18(num_classes=10), 64)}


def train(folder, job, strategy, steps, hot):
    """Return the seconds of a step in the middle."""
    torch.set_num_threads(1)
    os.chdir(folder)  # metrics go there too
    rank = os.environ["RANK"]
    if hot:
        for name in (f"control-{rank}", f"control-{rank}.step-end"):
            os.mkfifo(folder / name)
        os.environ |= {"LAUNCH_CONTROL": str(folder / f"control-{rank}"), "LAUNCH_NOTES_DIR": str(folder)}
    make, batch = JOBS[job]
    laps = Laps()
    settings = Settings(
        max_steps=steps, batch_size=batch, strategy=strategy, log_every=1000,
        checkpoint_dir=str(folder / "checkpoints"), checkpoint_every="1000000 steps",
    )  # fmt: skip
    trainer = Trainer(
        settings,
        model=make,
        loss=lambda model, batch: nn.functional.cross_entropy(model(batch[0]), batch[1]),
        data=Pictures(),
        optimizer=lambda parameters: torch.optim.AdamW(parameters, lr=1e-3),
        callbacks=[laps],
    )
    if trainer.fit() != 0:
        raise RuntimeError("the training did not end")
    if hot and not list(folder.glob(f"rank-{int(rank):05d}.*")):
        raise RuntimeError("nothing was noted: it does not stay")
    return statistics.median(laps.times[3:])


def measure(job, strategy, steps, hot):
    with tempfile.TemporaryDirectory(prefix="staying-", dir="/dev/shm") as place:
        environment = {name: "" for name in os.environ if name.startswith("LAUNCH_")}
        if not hot:
            environment.pop("LAUNCH_CONTROL", None)
        return max(Ranks(train, 2, Path(place), job, strategy, steps, hot, env=environment).results(LIMIT_S))


def rows(job, strategy, steps, pairs):
    plain, staying = [], []
    for _ in range(pairs):
        plain.append(measure(job, strategy, steps, False))
        staying.append(measure(job, strategy, steps, True))
    more = [100 * (with_it / without - 1) for with_it, without in zip(staying, plain, strict=True)]
    cells = " | ".join(f"{1000 * statistics.median(one):.1f}" for one in (plain, staying))
    return f"| {job} | {strategy} | {cells} | {spread(more, 1)} |"


NOTES = (
    "With `mode: hot`, when one rank is lost, the other ranks keep their processes and send their state to "
    "its replacement. So that they can, each rank saves its own state, such as its random generators, to a "
    "file in memory at every step. The table has what this costs in a training without faults, on two "
    "ranks. `a step` is the CPU time of a rank in one step without `mode: hot`, and `hot` the same with it. "
    "`more, %` is the difference in percent, as a median over the pairs, and `range` has its lowest and "
    "highest value. The job `linear` trains one linear layer, and the job `mlp` eight layers of width 1024."
)


def main():
    parser = benchmark_parser(__doc__, pairs=5)
    parser.add_argument("--jobs", nargs="+", default=list(JOBS), choices=JOBS)
    parser.add_argument("--strategies", nargs="+", default=["ddp"])
    parser.add_argument("--steps", type=int, default=10)
    args = parser.parse_args()
    lines = [
        "| job | strategy | a step, ms of a processor | hot, ms | more, % | range |",
        "|---|---|---|---|---|---|",
        *(rows(job, strategy, args.steps, args.pairs) for job in args.jobs for strategy in args.strategies),
    ]
    publish("in_place_cost", "\n".join([*lines, "", NOTES]), write=args.write)


if __name__ == "__main__":
    main()
