"""Clip gradients by value, and by norm in the host's memory, which GPU messages do not reach."""

from collections.abc import Iterable

import torch
import torch.distributed as dist
from torch import Tensor

from trainer.strategies.finite import alike, multiply, plain
from trainer.world import World

_LEAST = 1e-6  # as torch's own has it: no division by zero


def clip_values(gradients: Iterable[Tensor], most: float) -> None:
    """Clip each number of this rank's gradients in place to between `-most` and `most`."""
    for numbers in alike(gradients).values():
        torch._foreach_clamp_min_(numbers, -most)
        torch._foreach_clamp_max_(numbers, most)


def clip_offloaded(gradients: Iterable[Tensor], most: float | None, world: World, copies: int) -> Tensor:
    """Scale this rank's shards as clip_grad_norm_ does, and return the norm of all.

    `copies` is the number of copies of each shard.
    """
    shards = [plain(gradient) for gradient in gradients]
    norms = [torch.linalg.vector_norm(shard, dtype=torch.double) for shard in shards]
    squares = torch.stack([torch.zeros((), dtype=torch.double), *norms]).square().sum()
    dist.all_reduce(squares, group=world.control)
    norm = (squares / copies).sqrt()
    if most is not None:
        multiply(shards, (most / (norm + _LEAST)).clamp(max=1.0))
    return norm
