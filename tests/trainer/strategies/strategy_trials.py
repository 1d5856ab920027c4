"""Small models, and trainings of a few steps with any strategy; what a rank found comes back as plain data."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812 - its usual name

from trainer.strategies import Strategy, StrategySettings, build, number_of
from trainer.world import World, join

SAMPLES = 12  # of an optimizer step: a multiple of 1, 2, 3 and 4 ranks
Batch = tuple[Tensor, Tensor]


class Block(nn.Module):
    def __init__(self, width: int, dropout: float) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.up, self.down = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.down(self.dropout(F.gelu(self.up(self.norm(x)))))


class Words(nn.Module):
    """Embedding, blocks, head: the shape of a language model, with sizes that no number of ranks divides."""

    def __init__(self, *, width: int = 10, dropout: float = 0.0, tied: bool = False, blocks: int = 3) -> None:
        super().__init__()
        self.embedding = nn.Embedding(7, width)
        self.blocks = nn.ModuleList(Block(width, dropout) for _ in range(blocks))
        self.head = nn.Linear(width, 7, bias=False)
        if tied:
            self.head.weight = self.embedding.weight

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embedding(tokens)
        for block in self.blocks:
            x = block(x)
        logits: Tensor = self.head(x)
        return logits


class Pixels(nn.Module):
    """Convolution and BatchNorm."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Sequential(nn.Conv2d(1, 6, 3, bias=False), nn.BatchNorm2d(6), nn.ReLU()),
            nn.Sequential(nn.Conv2d(6, 6, 3, bias=False), nn.BatchNorm2d(6), nn.ReLU(), nn.Dropout(0.2)),
        )
        self.head = nn.Linear(6, 7)

    def forward(self, images: Tensor) -> Tensor:
        logits: Tensor = self.head(self.layers(images).mean((2, 3)))
        return logits


def words(seed: int = 1, **shape: Any) -> Words:
    torch.manual_seed(seed)
    return Words(**shape)


def pixels(seed: int = 1) -> Pixels:
    torch.manual_seed(seed)
    return Pixels()


def word_batch(step: int, samples: int = SAMPLES) -> Batch:
    generator = torch.Generator().manual_seed(1000 + step)
    tokens = torch.randint(0, 7, (samples, 5), generator=generator)
    return tokens, (3 * tokens + 1) % 7


def pixel_batch(step: int, samples: int = SAMPLES) -> Batch:
    generator = torch.Generator().manual_seed(2000 + step)
    return torch.randn(samples, 1, 8, 8, generator=generator), torch.randint(0, 7, (samples,), generator=generator)


def loss_of(model: nn.Module, batch: Batch) -> Tensor:
    """Return the cross entropy of the model's outputs for the batch, averaged over all positions."""
    inputs, wanted = batch
    return F.cross_entropy(model(inputs).flatten(0, -2), wanted.flatten())


def share(batch: Batch, rank: int, size: int) -> Batch:
    """Return the part of a batch that one rank or micro-batch has."""
    inputs, wanted = batch
    return inputs[rank::size], wanted[rank::size]


def sgd(parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=0.1, momentum=0.9)


def adamw(parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
    return torch.optim.AdamW(parameters, lr=0.01, weight_decay=0.1)


@dataclass(frozen=True)
class Trial:
    """A training of a few steps."""

    settings: StrategySettings
    model: Callable[[], nn.Module] = words
    batch: Callable[[int], Batch] = word_batch
    optimizer: Callable[[Iterable[nn.Parameter]], torch.optim.Optimizer] = sgd
    steps: int = 4
    accumulate: int = 1
    scale: float = 1.0  # of the loss: big gradients for clipping

    def with_(self, **changes: Any) -> "Trial":
        return replace(self, settings=replace(self.settings, **changes))


@dataclass
class Found:
    losses: list[float] = field(default_factory=list)
    norms: list[float] = field(default_factory=list)  # none where nothing is clipped
    parameters: dict[str, Tensor] = field(default_factory=dict)


def world_of(settings: StrategySettings) -> World:
    """The world in whose environment this process is: a plain one for strategies that know no other."""
    if settings.strategy in ("none", "dp"):
        return World(0, 1, 0, 1, torch.device("cpu"))
    return join(group=True, device="cpu", timeout_s=150)


def start(trial: Trial) -> tuple[Strategy, World]:
    world = world_of(trial.settings)
    return build(trial.model(), world, trial.settings, trial.optimizer), world


def one_step(strategy: Strategy, trial: Trial, step: int) -> float:
    """Train one step without `strategy.step`, and return the mean loss of this rank."""
    world, total = strategy.world, 0.0
    mine = share(trial.batch(step), world.rank, world.size)
    for micro in range(trial.accumulate):
        with strategy.forward_context(sync=micro == trial.accumulate - 1):
            loss = loss_of(strategy.model, share(mine, micro, trial.accumulate))
        strategy.backward(loss * (trial.scale / trial.accumulate))
        total += loss.item() / trial.accumulate
    return total


def run(trial: Trial) -> Found:
    """Run a trial on one rank."""
    torch.set_num_threads(1)
    strategy, _ = start(trial)
    found = Found()
    for step in range(trial.steps):
        found.losses.append(one_step(strategy, trial, step))
        norm = strategy.step()
        if norm is not None:
            found.norms.append(number_of(norm))
    found.parameters = whole(strategy.module)
    return found


def whole(module: nn.Module) -> dict[str, Tensor]:
    """Unsharded. Every rank has to ask for it."""
    module.state_dict()  # puts gathered parameters away, where there are any
    return {name: full(parameter) for name, parameter in module.named_parameters(remove_duplicate=False)}


def full(tensor: Tensor) -> Tensor:
    gathered = getattr(tensor.detach(), "full_tensor", None)
    return (tensor.detach() if gathered is None else gathered()).clone()


def mean_losses(found: list[Found]) -> list[float]:
    return [sum(losses) / len(found) for losses in zip(*(one.losses for one in found), strict=True)]
