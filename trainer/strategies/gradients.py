"""Reduce gradients over ranks where neither DDP nor FSDP2 does it."""

from collections.abc import Sequence

import torch
import torch.distributed as dist
from torch import Tensor, nn

from trainer.checkpoint.stand_ins import is_here
from trainer.strategies.finite import plain
from trainer.world import World


def add_up(
    parameters: Sequence[nn.Parameter | Tensor], world: World, group: dist.ProcessGroup | None = None, ranks: int = 0
) -> None:
    """Average the gradients over ranks in one message; a rank without a gradient counts as zero.

    All ranks call it with the same parameters. `group`, of `ranks` ranks, is given where it is not all of them.
    """
    ranks = ranks or world.size
    if ranks == 1:
        return
    some = torch.tensor([one.grad is not None for one in parameters], dtype=torch.uint8)
    dist.all_reduce(some, dist.ReduceOp.MAX, group=world.control)  # on the host: a GPU is not waited for
    wanted = [one for one, has in zip(parameters, some.tolist(), strict=True) if has and is_here(one)]
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
