"""Compare the time of a step in `Trainer` with that in a loop by hand, in Lightning and with Accelerate.

    uv run --with lightning --with accelerate python tests/benchmarks/train_step.py [--write]

The same for all: gloo ranks of one thread, a data set of tensors, shuffled anew in each epoch and shared out by rank,
no workers, SGD with momentum, a loss, no clipping, no validation, no checkpoint while it is measured, the loss written
to a file every hundred steps. Two trainings: a ResNet-18 for small images, whose steps are long, and a tiny MLP, whose
steps are so short that what the loop itself costs is seen. The sides take turns, each in new processes; a step's time
is that of all steps after the first ones, divided by their number.
"""

import importlib.util
import itertools
import logging
import statistics
import time
import warnings
from dataclasses import dataclass
from pathlib import Path

import torch
from replica import folder_for_all, on_ranks, ratio
from results import benchmark_parser, installed, publish
from torch import nn
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

from trainer.loop import Settings, Trainer
from trainer.loop.callbacks import Callback
from trainer.tasks.classifiers import build_classifier

OURS, HAND, LIGHTNING, ACCELERATE = "Trainer", "by hand", "Lightning", "Accelerate"
PEERS = (OURS, HAND, LIGHTNING, ACCELERATE)
LOG_EVERY = 100
CLASSES = 10
_BROUGHT = {LIGHTNING: "lightning", ACCELERATE: "accelerate"}


@dataclass(frozen=True)
class Kind:
    """A training: what is trained, on what, and how many steps are measured after how many others."""

    name: str
    samples: int
    shape: tuple[int, ...]
    batch_size: int  # over all ranks
    warmup: int
    steps: int
    peers: tuple[str, ...]

    def model(self):
        torch.manual_seed(1)
        if self.name == "mlp":
            return nn.Sequential(nn.Linear(self.shape[0], 64), nn.ReLU(), nn.Linear(64, CLASSES))
        return build_classifier("resnet18", classes=CLASSES, pixels=self.shape[-1])

    def dataset(self):
        chance = torch.Generator().manual_seed(2)
        inputs = torch.randn(self.samples, *self.shape, generator=chance)
        return TensorDataset(inputs, torch.randint(0, CLASSES, (self.samples,), generator=chance))


def optimizer(parameters):
    return torch.optim.SGD(parameters, lr=1e-3, momentum=0.9)


class Watch:
    """Counts steps, and tells when enough are done."""

    def __init__(self, kind):
        self._first, self._last = kind.warmup, kind.warmup + kind.steps
        self._kind, self._count, self._began = kind, 0, 0.0
        self.step_s = None

    def lap(self):
        """Count a step and take the time of the measured ones; return True once all were made."""
        self._count += 1
        if self._count == self._first:
            self._began = time.perf_counter()
        elif self._count == self._last:
            self.step_s = (time.perf_counter() - self._began) / self._kind.steps
        return self._count >= self._last

    @property
    def steps(self):
        return self._last


class Log:
    """A loss to a file, now and then, as a loop written by hand would do it."""

    def __init__(self, world, folder):
        self._file = (folder / "losses.txt").open("w") if world.is_first else None

    def write(self, step, loss):
        if step % LOG_EVERY == 0 and self._file is not None:
            self._file.write(f"{step} {loss.item():.4f}\n")
            self._file.flush()


def by_trainer(world, folder, kind):
    watch = Watch(kind)

    class Laps(Callback):
        def on_step(self, training):
            watch.lap()

    settings = Settings(
        max_steps=watch.steps,
        batch_size=kind.batch_size,
        drop_last=True,
        strategy="ddp",
        log_every=LOG_EVERY,
        checkpoint_dir=folder / "checkpoints",
        out=folder,
    )
    Trainer(
        settings,
        model=kind.model,
        loss=lambda model, batch: cross_entropy(model(batch[0]), batch[1]),
        data=kind.dataset(),
        optimizer=optimizer,
        callbacks=[Laps()],
    ).fit(world)
    return watch.step_s


def by_hand(world, folder, kind):
    watch, log = Watch(kind), Log(world, folder)
    model = DistributedDataParallel(kind.model(), gradient_as_bucket_view=True)
    stepper = optimizer(model.parameters())
    dataset = kind.dataset()
    sampler = DistributedSampler(dataset, drop_last=True)
    loader = DataLoader(dataset, batch_size=kind.batch_size // world.size, sampler=sampler, drop_last=True)
    step = 0
    for epoch in itertools.count():
        sampler.set_epoch(epoch)
        for inputs, labels in loader:
            stepper.zero_grad()
            loss = cross_entropy(model(inputs), labels)
            loss.backward()
            stepper.step()
            step += 1
            log.write(step, loss)
            if watch.lap():
                return watch.step_s
    return None


def by_lightning(world, folder, kind):
    import lightning  # late: brought for this benchmark alone

    hush("lightning")
    watch, log = Watch(kind), Log(world, folder)

    class Module(lightning.LightningModule):
        def __init__(self):
            super().__init__()
            self.net = kind.model()

        def training_step(self, batch, _):
            loss = cross_entropy(self.net(batch[0]), batch[1])
            log.write(self.global_step + 1, loss)
            return loss

        def configure_optimizers(self):
            return optimizer(self.parameters())

    class Laps(lightning.Callback):
        def on_train_batch_end(self, *_):
            watch.lap()

    lightning.Trainer(
        accelerator="cpu",
        devices=world.size,
        strategy=lightning.pytorch.strategies.DDPStrategy(gradient_as_bucket_view=True),
        max_steps=watch.steps,
        callbacks=[Laps()],
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        default_root_dir=folder,
    ).fit(Module(), DataLoader(kind.dataset(), batch_size=kind.batch_size // world.size, shuffle=True, drop_last=True))
    return watch.step_s


def by_accelerate(world, folder, kind):
    import accelerate  # late: brought for this benchmark alone

    watch, log = Watch(kind), Log(world, folder)
    accelerator = accelerate.Accelerator(
        cpu=True, kwargs_handlers=[accelerate.DistributedDataParallelKwargs(gradient_as_bucket_view=True)]
    )
    model = kind.model()
    loader = DataLoader(kind.dataset(), batch_size=kind.batch_size // world.size, shuffle=True, drop_last=True)
    model, stepper, loader = accelerator.prepare(model, optimizer(model.parameters()), loader)
    step = 0
    while True:
        for inputs, labels in loader:
            stepper.zero_grad()
            loss = cross_entropy(model(inputs), labels)
            accelerator.backward(loss)
            stepper.step()
            step += 1
            log.write(step, loss)
            if watch.lap():
                return watch.step_s


_WORK = {OURS: by_trainer, HAND: by_hand, LIGHTNING: by_lightning, ACCELERATE: by_accelerate}


def step_s(world, folder, peer, kind):
    warnings.simplefilter("ignore")
    return _WORK[peer](world, folder, kind)


def hush(name):
    logging.getLogger(name).setLevel(logging.ERROR)
    for child in [*logging.root.manager.loggerDict]:
        if child.startswith(f"{name}."):
            logging.getLogger(child).setLevel(logging.ERROR)


def rows(kind, ranks, pairs, peers):
    taken = {peer: [] for peer in peers if peer in kind.peers}
    for turn in range(pairs):
        order = list(taken)
        for peer in order[turn % len(order) :] + order[: turn % len(order)]:
            with folder_for_all(None) as folder:
                taken[peer].append(on_ranks(step_s, ranks, folder, peer, kind) * 1e6)
    for peer, times in taken.items():
        cells = f"{statistics.median(times):,.0f} | {min(times):,.0f}-{max(times):,.0f}"
        yield f"| {kind.name}, {ranks} ranks | {peer} | {cells} | {ratio(taken[OURS], times):.3f} |"


def kinds(args):
    yield Kind("resnet18", 640, (3, 32, 32), 32, 5, args.resnet_steps, (OURS, HAND))
    yield Kind("mlp", 8192, (32,), 32, 200, args.mlp_steps, PEERS)


def main():
    parser = benchmark_parser(__doc__, pairs=7)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--resnet-steps", type=int, default=60)
    parser.add_argument("--mlp-steps", type=int, default=5000)
    parser.add_argument("--kinds", nargs="+", choices=["resnet18", "mlp"], default=["resnet18", "mlp"])
    parser.add_argument("--peers", nargs="+", choices=PEERS, default=PEERS)
    args = parser.parse_args()
    missing = [
        _BROUGHT[peer] for peer in args.peers if peer in _BROUGHT and not importlib.util.find_spec(_BROUGHT[peer])
    ]
    if missing:
        raise SystemExit(
            f"not installed: {', '.join(missing)}\n"
            f"hint: uv run --with {' --with '.join(missing)} python {Path(__file__).name} ..., "
            f"or leave them out: --peers {OURS} '{HAND}'"
        )
    table = ["| training | | step, µs | range | Trainer / this |", "|---|---|---|---|---|"]
    for kind in kinds(args):
        if kind.name in args.kinds:
            table += rows(kind, args.ranks, args.pairs, args.peers)
    versions = ", ".join(f"{name} {installed(name)}" for name in _BROUGHT.values())
    notes = (
        f"`{HAND}` is a plain PyTorch loop with DistributedDataParallel; all train the same model on the same data. "
        "`mlp` is a tiny MLP, in whose short steps the cost of the loop itself is visible. `Trainer / this` is the "
        "median of the ratios of single rounds, in each of which every program ran once. So it can differ from the "
        f"ratio of the two medians in `step, µs`. Versions: {versions}."
    )
    publish("train_step", "\n".join([*table, "", notes]), write=args.write)


if __name__ == "__main__":
    main()
