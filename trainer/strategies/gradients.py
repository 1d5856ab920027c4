"""Reduce and clip gradients in the cases that DDP, FSDP2 and torch's own clipping do not cover."""

from collections.abc import Iterable, Sequence

import torch
import torch.distributed as dist
from torch import Tensor, nn

from trainer.checkpoint.stand_ins import has_values
from trainer.strategies.finite import by_device_and_type, multiply, plain
from trainer.world import World


def reduce_gradients(
    parameters: Sequence[nn.Parameter | Tensor], world: World, group: dist.ProcessGroup | None = None, ranks: int = 0
) -> None:
    """Average the gradients over ranks in one message per dtype; a rank without a gradient counts as zero.

    A parameter that has a gradient on no rank is left out. All ranks call it with the same parameters. `group`, of
    `ranks` ranks, limits the average to these; by default it is over all.
    """
    ranks = ranks or world.size
    if ranks == 1:
        return
    some = torch.tensor([one.grad is not None for one in parameters], dtype=torch.uint8)
    dist.all_reduce(some, dist.ReduceOp.MAX, group=world.control)  # on the host: a GPU is not waited for
    wanted = [one for one, has in zip(parameters, some.tolist(), strict=True) if has and has_values(one)]
    for one in wanted:
        one.grad = torch.zeros_like(one) if one.grad is None else one.grad
    for dtype in dict.fromkeys(one.dtype for one in wanted):
        gradients = [plain(one.grad) for one in wanted if one.dtype == dtype and one.grad is not None]
        flat = torch.cat([gradient.reshape(-1) for gradient in gradients])
        dist.all_reduce(flat, group=group)
        flat /= ranks
        parts = flat.split([gradient.numel() for gradient in gradients])
        for gradient, part in zip(gradients, parts, strict=True):
            gradient.copy_(part.view_as(gradient))


_LEAST = 1e-6  # as torch's own has it: no division by zero


def clip_values(gradients: Iterable[Tensor], most: float) -> None:
    """Clip each value of this rank's gradients in place to between `-most` and `most`."""
    for numbers in by_device_and_type(gradients).values():
        torch._foreach_clamp_min_(numbers, -most)
        torch._foreach_clamp_max_(numbers, most)


def clip_offloaded(gradients: Iterable[Tensor], most: float | None, world: World, copies: int) -> Tensor:
    """Return the norm of the gradients over all ranks, and scale this rank's shards of them if it is over `most`.

    The norm is that before scaling. All ranks call it. `copies` is the number of ranks that have each shard; with
    `most` None nothing is scaled.
    """
    shards = [plain(gradient) for gradient in gradients]
    norms = [torch.linalg.vector_norm(shard, dtype=torch.double) for shard in shards]
    squares = torch.stack([torch.zeros((), dtype=torch.double), *norms]).square().sum()
    dist.all_reduce(squares, group=world.control)
    norm = (squares / copies).sqrt()
    if most is not None:
        multiply(shards, (most / (norm + _LEAST)).clamp(max=1.0))
    return norm
