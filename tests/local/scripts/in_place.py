"""A small training in which whatever is not put back shows: dropout, BatchNorm, draws of Python and NumPy, a schedule
that goes by validations, a callback with state, and samples that are augmented.

`--audit FILE`: what each rank does, for tests/chaos/audit/py `--hold FILE`: no rank goes on from the step in it.
`--pause S` in each forward pass; with `--slow FILE` as long as that is there. `--die PATH`: in files PATH-0, PATH-1 and
so on a rank, a step and a place each, where that rank kills itself, or stops where `stop` follows, or hangs as in an
operation of torch's where `hang` does, or, where `word` does, waits for launch's word that another one is gone:
`abandon` is where it gives up a save that is under way then, `connect` while it meets the others anew, `optimizer`
after its update; with zero1 `spread` is while it sends its new weights to the others; with `--layers`, `layer` is in the
forward pass of one of them, and `gradient` in its backward pass. A layer says so where it is run after the word. With `--wraps` the
loss makes an error of its own of any. With `--mortal SEED N` ranks die anywhere, for so many generations (mortal.py).
At the end each says how many updates it made.
"""

import importlib
import os
import random
import signal
import sys
import threading
import time
from argparse import ArgumentParser
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import Dataset

from trainer import Settings, Trainer
from trainer.checkpoint.checkpointer import Checkpointer
from trainer.checkpoint_files import catalog
from trainer.connections import group_connections
from trainer.loop import Callback

SAMPLES = 96


class Points(Dataset):
    """The noise is augmentation, from torch's own generator."""

    def __len__(self):
        return SAMPLES

    def __getitem__(self, index):
        point = torch.randn(8, generator=torch.Generator().manual_seed(index))
        return point + 0.1 * torch.randn(8), float(point.sum() > 0)


class Reporter(Callback):
    """Keeps a sum of what it has heard, and lets it take part in the loss."""

    def __init__(self, die):
        self.heard, self.step, self.rank, self._die = 0, 0, 0, die

    def on_start(self, training):
        self.step, self.rank = training.step, training.world.rank

    def on_step(self, training):
        self.step = training.step
        self.heard += training.step
        self.may_die("on_step")

    def on_validation(self, training, values):
        self.heard += int(1000 * values["val_loss"])
        self.may_die("on_validation")

    def may_die(self, place, rank=None):
        rank = self.rank if rank is None else rank
        for path in Path(self._die).parent.glob(Path(self._die).name + "-*") if self._die else ():
            try:
                meant = path.read_text().split()
            except FileNotFoundError:  # another rank has just gone by it
                continue
            if meant[:3] == [str(rank), str(self.step), place]:
                path.unlink()
                if meant[3:] == ["word"]:
                    while not group_connections.given_up:
                        time.sleep(0.01)
                    return
                if meant[3:] == ["hang"]:
                    hang()
                os.kill(os.getpid(), signal.SIGSTOP if meant[3:] == ["stop"] else signal.SIGKILL)

    def state_dict(self):
        return {"heard": self.heard}

    def load_state_dict(self, state):
        """Where a rank was replaced, on all: those that stay, and the new one."""
        self.heard = state["heard"]
        self.may_die("load", int(os.environ["RANK"]))


def hang():
    namespace = {"__name__": "torch.distributed", "lock": threading.Lock()}
    exec("def operation():\n    lock.acquire()\n    lock.acquire()\n", namespace)
    namespace["operation"]()


class Late(Callback):
    """A callback that has state from its first step on."""

    def on_step(self, training):
        self.seen = training.step

    def state_dict(self):
        return {"seen": self.seen}


class Audited(Callback):
    """Writes down what this rank does: it starts in a generation with the first update that it makes there. What follows
    an update may be done again by ranks that stay."""

    def __init__(self, path):
        self._note = importlib.import_module("audited").Audit(path).note
        self._generation, self._saved, self._born = "", 0, False
        if "LAUNCH_RESERVE" not in os.environ:  # else it is no rank yet
            self._be_born()

    def _be_born(self):
        self._note("born", 0)
        self._born = True

    def updated(self, step):
        if not self._born:
            self._be_born()
        if self._generation != os.environ["LAUNCH_GENERATION"]:
            self._generation = os.environ["LAUNCH_GENERATION"]
            self._note("start", step - 1)
        self._note("step", step)

    def on_step(self, training):
        self._note("done", training.step)
        for step in self._committed():
            self._note("save", step)

    def on_done(self, training):
        self._note("end", training.step)

    def _committed(self):
        """Checkpoints that rank 0 had not seen before."""
        if os.environ["RANK"] != "0":
            return []
        new = [step for step in catalog.steps(Path(os.environ["LAUNCH_CHECKPOINT_DIR"])) if step > self._saved]
        self._saved = max([self._saved, *new])
        return new


class Shuffled(nn.Module):
    """A data set whose order Python's generator draws when it is made."""

    def __init__(self, width):
        super().__init__()
        self.order = random.sample(range(width), width)

    def forward(self, x):
        return x[:, self.order]


class Counting(nn.Module):
    """A callable that counts its calls; checkpoints do not have the count."""

    calls = 0

    def forward(self, x):
        self.calls += 1
        return x


class Gradient(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, run):
        ctx.run = run
        return x.clone()

    @staticmethod
    def backward(ctx, gradient):
        ctx.run("gradient")
        return gradient, None


class Layer(nn.Module):
    """Gives what comes, in its own time once there is the word."""

    def __init__(self, reporter):
        super().__init__()
        self._reporter = reporter

    def forward(self, x):
        self._run("layer")
        return Gradient.apply(x, self._run)

    def _run(self, place):
        if group_connections.given_up:
            print("a layer was run after the word", flush=True)
            time.sleep(0.3)
        self._reporter.may_die(place)


def model(*, buffers=True, width=33, shuffled=True, counts=False):
    norm = nn.BatchNorm1d(width) if buffers else nn.LayerNorm(width)
    order = [Shuffled(width)] if shuffled else []
    order += [Counting()] if counts else []
    return nn.Sequential(nn.Linear(8, width), *order, norm, nn.ReLU(), nn.Dropout(0.2), nn.Linear(width, 1))


def watch_meeting(reporter):
    """A rank has found the others, of which one was killed, and is to be connected with them."""
    meet, abandon = dist.init_process_group, Checkpointer.abandon

    def may_die(place):
        reporter.may_die(place, int(os.environ["RANK"]))

    def met(*given, **named):
        if os.environ.get("LAUNCH_JOINS") == "1":
            may_die("connect")
        meet(*given, **named)

    def abandoned(checkpointer):
        may_die("abandon")
        abandon(checkpointer)

    dist.init_process_group, Checkpointer.abandon = met, abandoned


def watch_updates(reporter):
    """The places in an update of zero1."""
    send = dist.broadcast

    def sent(*given, **named):
        work = send(*given, **named)
        if named.get("async_op") and named["src"] == dist.get_rank():
            reporter.may_die("spread")
        return work

    dist.broadcast = sent


def main(words=None):
    parser = ArgumentParser()
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--pause", type=float, default=0.0)
    parser.add_argument("--workers", type=int, default=0)
    parser.add_argument("--no-buffers", action="store_true")
    parser.add_argument("--width", type=int, default=33)
    parser.add_argument("--counts", action="store_true")
    parser.add_argument("--late", action="store_true")
    parser.add_argument("--strategy", default="ddp")
    parser.add_argument("--shard-size", type=int)
    parser.add_argument("--given", action="store_true", help="the model itself, in the place of a function")
    parser.add_argument("--audit")
    parser.add_argument("--hold")
    parser.add_argument("--slow")
    parser.add_argument("--die")
    parser.add_argument("--layers", type=int, default=0)
    parser.add_argument("--wraps", action="store_true")
    parser.add_argument("--mortal", type=int, nargs=2)
    args = parser.parse_args(words)
    torch.set_num_threads(1)
    if args.mortal:
        importlib.import_module("mortal").Mortal(*args.mortal).begin()
    reporter = Reporter(args.die)
    if os.environ.get("LAUNCH_JOINS") == "1":
        reporter.may_die("start", int(os.environ["RANK"]))
    watch_meeting(reporter)
    watch_updates(reporter)

    def held():
        try:
            return reporter.step >= int(Path(args.hold or "/nowhere").read_text())
        except FileNotFoundError:
            return False

    def loss(model, batch):
        points, wanted = batch
        if model.training:
            time.sleep(args.pause if args.slow is None or os.path.exists(args.slow) else 0.0)
            while held():
                time.sleep(0.02)
            noise = random.gauss(0, 0.01) + np.random.normal(0, 0.01)
            points = points * (1 + noise + 1e-6 * reporter.heard)
            reporter.may_die("forward")
        try:
            found = model(points).squeeze(1)
        except Exception as error:
            if args.wraps:
                raise LookupError("the user's own") from error
            raise
        if model.training and found.requires_grad:
            found.register_hook(lambda gradient: reporter.may_die("backward") or gradient)
        return nn.functional.binary_cross_entropy_with_logits(found, wanted.float())

    updates = []
    audited = [Audited(args.audit)] if args.audit else []

    def optimizer(parameters):
        made = torch.optim.AdamW(parameters, lr=0.01)
        made.register_step_post_hook(lambda *_: updates.append(reporter.step + 1))
        for one in audited:
            made.register_step_post_hook(lambda *_: one.updated(reporter.step + 1))
        made.register_step_post_hook(lambda *_: reporter.may_die("optimizer"))
        if args.layers:
            made.register_step_post_hook(lambda *_: Layer(reporter)(torch.zeros(1)))
        return made

    def made():
        layers = [part for _ in range(args.layers) for part in (nn.Linear(8, 8), Layer(reporter))]
        return nn.Sequential(*layers, *model(buffers=not args.no_buffers, width=args.width, counts=args.counts))

    settings = Settings(
        max_steps=args.steps,
        batch_size=16,
        accumulate=2,
        strategy=args.strategy,
        shard_size=args.shard_size,
        clip_norm=1.0,
        workers=args.workers,
        log_every=1,
        validate_every=5,
        patience=100,
    )
    trainer = Trainer(
        settings,
        model=model(shuffled=False) if args.given else made,
        loss=loss,
        data=Points(),
        validation=Points(),
        optimizer=optimizer,
        schedule=lambda optimizer, _: torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, patience=1),
        callbacks=[reporter, *audited, *([Late()] if args.late else [])],
    )
    code = trainer.fit()
    print(f"rank {reporter.rank} made updates {updates[:1]} to {updates[-1:]}: {len(updates)}", flush=True)
    return code


if __name__ == "__main__":
    sys.exit(main())
