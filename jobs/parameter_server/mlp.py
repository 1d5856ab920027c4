"""The model and data of the parameter server's training: a small MLP, and samples that are drawn on the way."""

import torch
from torch import Tensor, nn

FEATURES, CLASSES = 64, 10
_UNITS = 256
_UNSEEN = -1  # the batch that nobody learns from


def new_mlp(seed: int) -> nn.Sequential:
    """Return the MLP with random weights that depend on the seed alone; torch's generator is seeded for it."""
    torch.manual_seed(seed)
    return nn.Sequential(
        nn.Linear(FEATURES, _UNITS), nn.ReLU(), nn.Linear(_UNITS, _UNITS), nn.ReLU(), nn.Linear(_UNITS, CLASSES)
    )


def draw(seed: int, rank: int, step: int, size: int) -> tuple[Tensor, Tensor]:
    """Return the `size` samples of a rank at a step, and their class numbers; both depend on the arguments alone.

    A fixed non-linear map is applied to each sample; its class is the number of the fixed random point with which the
    result has the largest dot product. The map and the points are drawn by `seed`.
    """
    task = torch.Generator().manual_seed(seed)
    fold = torch.randn(FEATURES, FEATURES, generator=task) / FEATURES**0.5
    points = torch.randn(FEATURES, CLASSES, generator=task)
    chance = torch.Generator().manual_seed(((seed * 1_000 + rank) * 1_000_003 + step) % 2**63)
    samples = torch.randn(size, FEATURES, generator=chance)
    return samples, ((samples @ fold).tanh() @ points).argmax(1)


def accuracy(net: nn.Module, seed: int) -> float:
    """Return the share of 2,000 samples, drawn by `seed` and trained on by no rank, that the model classifies right."""
    samples, classes = draw(seed, 0, _UNSEEN, 2_000)
    with torch.no_grad():
        return float((net(samples).argmax(1) == classes).float().mean())


def line(step: int, steps: int, loss: float, lr: float, samples_per_s: float) -> str:
    """Return the line that is printed for a step, in the format of the trainer."""
    return f"step {step}/{steps}  loss {loss:.4g}  lr {lr:.3g}  {samples_per_s:.0f} samples/s"
