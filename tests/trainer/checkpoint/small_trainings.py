"""Small trainings that hold every kind of state, and ways to disturb them."""

import contextlib
import logging
import os
import random
import select
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from holding import hold_saves
from ranks import Ranks
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn.parallel import DistributedDataParallel
from torch.optim.lr_scheduler import LambdaLR, MultiStepLR, OneCycleLR

from trainer.checkpoint import Checkpointer
from trainer.checkpoint_files import catalog
from trainer.wire import Every
from trainer.world import World, join

SHARDED = ("fsdp", "zero2", "hsdp")


@dataclass(frozen=True)
class Recipe:
    """The settings of a small training."""

    strategy: str = "ddp"
    optimizer: str = "adamw"
    scheduler: str = "onecycle"
    scaler: bool = False
    ema: bool = False
    unused: bool = True  # parameters that no loss reaches
    broadcast_buffers: bool = True  # of DDP
    steps: int = 24
    every: str = "3 steps"
    asynchronous: bool = True


@dataclass(frozen=True)
class Ended:
    """The result of a training on one rank."""

    start: int
    step: int
    losses: dict[int, float]
    fingerprint: str | None  # None: left on request


class Counted(nn.Module):
    """Counts its calls outside of any tensor, and lets what it counts take part."""

    def __init__(self) -> None:
        super().__init__()
        self.calls = 0

    def forward(self, x: Tensor) -> Tensor:
        self.calls += self.training
        return x * (1 + 0.001 * self.calls)

    def get_extra_state(self) -> dict[str, int]:
        return {"calls": self.calls}

    def set_extra_state(self, state: dict[str, int]) -> None:
        self.calls = state["calls"]


class Rich(nn.Module):
    """Tied, frozen and unused weights, BatchNorm, dropout, extra state, and sizes that no world divides."""

    def __init__(self, unused: bool = True) -> None:
        super().__init__()
        self.embed = nn.Embedding(13, 8)
        self.body = nn.Sequential(nn.Linear(8, 9), nn.BatchNorm1d(9), nn.ReLU(), nn.Dropout(0.2), nn.Linear(9, 8))
        self.counted = Counted()
        self.frozen = nn.Linear(8, 8).requires_grad_(False)
        self.warmth = nn.Parameter(torch.ones(1))
        self.head = nn.Linear(8, 13, bias=False)
        self.head.weight = self.embed.weight
        self.unused = nn.Linear(3, 2) if unused else None
        self.register_buffer("passing", torch.zeros(2), persistent=False)

    def forward(self, tokens: Tensor) -> Tensor:
        # What BatchNorm has seen so far takes part in training too, so that a loss shows whose buffers a rank has.
        x = self.embed(tokens).mean(1) + self.body.get_buffer("1.running_mean").sum()
        return self.head(self.counted(self.body(x)) + self.frozen(x)) * self.warmth


class Ema:
    """Averaged weights, kept as what the model's parameters are."""

    def __init__(self, model: nn.Module) -> None:
        self.model = model
        self.shadow = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}

    @torch.no_grad()
    def update(self) -> None:
        for name, parameter in self.model.named_parameters():
            self.shadow[name].lerp_(parameter, 0.1)

    def state_dict(self) -> dict[str, Any]:
        return {"shadow": self.shadow}

    @torch.no_grad()
    def load_state_dict(self, state: dict[str, Any]) -> None:
        for name, value in state["shadow"].items():
            self.shadow[name].copy_(value)


class RowsAndColumns(torch.optim.Optimizer):
    """Adafactor's kind of state: a matrix has one mean a row and one a column, beside plain numbers and text."""

    def __init__(self, parameters: Any, lr: float = 0.01) -> None:
        super().__init__(parameters, {"lr": lr, "decay": 0.9})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is None:
                    continue
                state = self.state[parameter]
                square = parameter.grad.square() + 1e-8
                if not state:
                    shape = parameter.shape
                    state["kind"] = "matrix" if parameter.dim() == 2 else "other"
                    state["rows"] = square.new_zeros((*shape[:-1], 1))
                    state["columns"] = square.new_zeros((*shape[:-2], 1, shape[-1])) if parameter.dim() > 1 else None
                    state["count"] = 0
                state["count"] += 1
                state["rows"].lerp_(square.mean(-1, keepdim=True), 1 - group["decay"])
                scale = state["rows"]
                if state["columns"] is not None:
                    state["columns"].lerp_(square.mean(-2, keepdim=True), 1 - group["decay"])
                    scale = scale * state["columns"] / state["rows"].mean(-2, keepdim=True)
                parameter.sub_(group["lr"] * parameter.grad / scale.sqrt())


OPTIMIZERS: dict[str, tuple[Any, dict[str, Any]]] = {
    "adamw": (torch.optim.AdamW, {"lr": 0.01, "amsgrad": True, "foreach": True}),
    "sgd": (torch.optim.SGD, {"lr": 0.05, "momentum": 0.9, "nesterov": True}),
    "plain-sgd": (torch.optim.SGD, {"lr": 0.05}),
    "adafactor": (torch.optim.Adafactor, {"lr": 0.02}),
    "rows": (RowsAndColumns, {"lr": 0.01}),
}


def wrap(module: nn.Module, recipe: Recipe, world: World) -> nn.Module:
    """The module under a strategy."""
    if recipe.strategy in ("ddp", "zero1"):
        ddp = DistributedDataParallel(module, find_unused_parameters=recipe.unused)
        ddp.broadcast_buffers = recipe.broadcast_buffers
        return ddp
    if recipe.strategy in SHARDED:
        shape = (2, world.size // 2) if recipe.strategy == "hsdp" else (world.size,)
        mesh = init_device_mesh("cpu", shape, mesh_dim_names=("copies", "shards")[-len(shape) :])
        for part in (getattr(module, "body", None), module):
            if part is not None:
                fully_shard(part, mesh=mesh, reshard_after_forward=recipe.strategy != "zero2")
    return module


def make_optimizer(model: nn.Module, recipe: Recipe) -> torch.optim.Optimizer:
    kind, options = OPTIMIZERS[recipe.optimizer]
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    groups = [{"params": parameters[:2], "weight_decay": 0.0}, {"params": parameters[2:]}]
    if recipe.strategy == "zero1":
        return ZeroRedundancyOptimizer(groups, kind, **options)
    return kind(groups, **options)


def make_scheduler(optimizer: torch.optim.Optimizer, recipe: Recipe) -> Any:
    if recipe.scheduler == "lambda":
        return LambdaLR(optimizer, lambda step: 1 / (1 + 0.1 * step))
    if recipe.scheduler == "multistep":
        return MultiStepLR(optimizer, [3, 5, 5, 11], gamma=0.7)
    # Sharded out, an optimizer shows no momentum that could be cycled.
    return OneCycleLR(optimizer, 0.02, total_steps=recipe.steps + 1, cycle_momentum=recipe.strategy != "zero1")


@dataclass
class Training:
    """All objects of one rank."""

    world: World
    recipe: Recipe
    module: Rich
    model: nn.Module
    optimizer: torch.optim.Optimizer
    scheduler: Any
    scaler: torch.amp.GradScaler
    ema: Ema | None

    @classmethod
    def begin(cls, recipe: Recipe) -> "Training":
        world = join(group=recipe.strategy != "none")
        torch.manual_seed(7)
        module = Rich(recipe.unused)
        model = wrap(module, recipe, world)
        optimizer = make_optimizer(model, recipe)
        return cls(
            world,
            recipe,
            module,
            model,
            optimizer,
            make_scheduler(optimizer, recipe),
            torch.amp.GradScaler("cpu", enabled=recipe.scaler, init_scale=2.0**7, growth_interval=4),
            Ema(module) if recipe.ema else None,
        )

    def settle(self) -> None:
        """Run one backward pass without a step, after which DDP has laid out its buckets, as every start does."""
        kept = {name: buffer.clone() for name, buffer in self.module.named_buffers()}
        calls = self.module.counted.calls
        self.loss().backward()
        self.optimizer.zero_grad(set_to_none=True)
        self.module.counted.calls = calls
        for name, buffer in self.module.named_buffers():
            buffer.copy_(kept[name])

    def checkpointer(self, folder: Path, **options: Any) -> Checkpointer:
        state: dict[str, Any] = {"scheduler": self.scheduler, "scaler": self.scaler}
        if self.ema is not None:
            state["ema"] = self.ema
        return Checkpointer(
            folder,
            model=self.model,
            optimizer=self.optimizer,
            state=state,
            total_steps=self.recipe.steps,
            world=self.world,
            **{"every": self.recipe.every, "asynchronous": self.recipe.asynchronous, **options},
        )

    def loss(self) -> Tensor:
        tokens = torch.randint(0, 13, (6, 5))
        return nn.functional.cross_entropy(self.model(tokens), tokens[:, 0])

    def step(self, number: int) -> float:
        loss = self.loss()
        # A step whose gradients overflow: the scaler leaves it out, and its scale falls.
        scaled = self.scaler.scale(loss) * (torch.inf if self.recipe.scaler and number == 5 else 1.0)
        scaled.backward()
        self.scaler.step(self.optimizer)
        self.scaler.update()
        self.scheduler.step()
        self.optimizer.zero_grad(set_to_none=True)
        if self.ema is not None:
            self.ema.update()
        return loss.item()


def train(
    folder: Path,
    recipe: Recipe,
    log: Path | None = None,
    progress_fd: int | None = None,
    stop_at: int | None = None,
    saves: int | None = None,
) -> Ended:
    """The loop of somebody who uses Checkpointer; what `log` gets survives a kill.

    `saves`: those of so many steps get through, counted from where it goes on; then it stands still to be killed.
    """
    training = Training.begin(recipe)
    if recipe.strategy in ("ddp", "zero1") and not recipe.unused:
        training.settle()
    torch.manual_seed(100 + training.world.rank)
    checkpointer = training.checkpointer(folder)
    start = step = checkpointer.load()
    if saves is not None:
        hold_saves(start + saves + 1)
    losses = {}
    with _appending(log, training.world.rank) as say:
        while step < recipe.steps:
            step += 1
            losses[step] = training.step(step)
            say(f"{step} {losses[step]!r}\n")
            if stop_at == step and training.world.rank == training.world.size - 1:
                checkpointer.ask_to_stop()
            leave = checkpointer.after_step(step)
            if progress_fd is not None and training.world.is_first:
                os.write(progress_fd, b".")
            if leave:
                checkpointer.close()
                return Ended(start, step, losses, None)
    return Ended(start, step, losses, checkpointer.finish(step))


@contextlib.contextmanager
def _appending(log: Path | None, rank: int) -> Iterator[Any]:
    if log is None:
        yield lambda _line: None
        return
    fd = os.open(log / f"rank-{rank}", os.O_CREAT | os.O_APPEND | os.O_WRONLY)
    yield lambda line: os.write(fd, line.encode())
    os.close(fd)


def logged(log: Path, rank: int) -> dict[int, set[float]]:
    """Every loss that a rank has ever seen at each step; a line that a kill has cut short does not count."""
    seen: dict[int, set[float]] = {}
    for line in (log / f"rank-{rank}").read_text().splitlines(keepends=True):
        if line.endswith("\n"):
            step, loss = line.split()
            seen.setdefault(int(step), set()).add(float(loss))
    return seen


@dataclass
class Disturbed:
    """A training that was killed again and again until it was through."""

    kills: int
    ended: list[Ended]
    in_mid_save: int  # how many of the kills left a draft behind


def train_killed(folder: Path, recipe: Recipe, size: int, log: Path, seed: int, kills: int) -> Disturbed:
    """Kill all ranks, `kills` times at random instants, and let them resume each time from a newer checkpoint."""
    draw = random.Random(seed)
    caught = reached = 0
    for _ in range(kills):
        # Each save waits for the one before: after two of them, one is there.
        steps = 2 * (Every.parse(recipe.every).steps or 0) + draw.randint(1, 2)
        ranks, progress = start_watched(folder, recipe, size, log, steps)
        await_steps(progress, steps)
        time.sleep(draw.uniform(0, 0.008))  # no condition: the instant is what is drawn
        ranks.kill()
        assert [kind for kind, _ in ranks.outcomes()] == ["killed"] * size
        os.close(progress)
        assert max(catalog.steps(folder)) > reached, "the kill came too early to show anything"
        reached = max(catalog.steps(folder))
        caught += any(name.startswith(".tmp-") for name in os.listdir(folder))
    return Disturbed(kills, Ranks(train, size, folder, recipe, log).results(), caught)


def start_watched(folder: Path, recipe: Recipe, size: int, log: Path, saves: int | None = None) -> tuple[Ranks, int]:
    """Ranks, and a pipe with a byte for each step that the first one has made."""
    progress, theirs = os.pipe()
    ranks = Ranks(train, size, folder, recipe, log, theirs, None, saves)
    os.close(theirs)
    return ranks, progress


def await_steps(progress: int, steps: int) -> None:
    for _ in range(steps):
        ready, _, _ = select.select([progress], [], [], 150)
        assert ready and os.read(progress, 1), "the training ended, or stood still, before it could be killed"


def assert_undisturbed(disturbed: Disturbed, undisturbed: list[Ended], log: Path) -> None:
    """Same loss at every step on every rank, however often a step was made, and the same end."""
    for rank, ended in enumerate(undisturbed):
        assert logged(log, rank) == {step: {loss} for step, loss in ended.losses.items()}
    assert [ended.fingerprint for ended in disturbed.ended] == [ended.fingerprint for ended in undisturbed]
    assert undisturbed[0].fingerprint is not None


def heard() -> list[str]:
    """Return the list to which the trainer's warnings and errors are added from now on."""
    said: list[str] = []

    class Ear(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            said.append(record.getMessage())

    logging.getLogger("trainer").addHandler(Ear(logging.WARNING))
    return said
