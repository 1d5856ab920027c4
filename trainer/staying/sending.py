"""Tensors from one rank to others: the large ones from where they lie to where they belong, the small ones together."""

from collections.abc import Sequence

import torch
import torch.distributed as dist
from torch import Tensor

_LARGE_BYTES = 1 << 20  # a tensor of so many is a message of its own


def send(tensors: Sequence[Tensor], ranks: Sequence[int], group: dist.ProcessGroup | None) -> None:
    """To each of these ranks. Those of a GPU by way of the host."""
    small, messages = _by_size([one.detach().cpu().contiguous() for one in tensors])
    if small:
        messages.append(torch.cat([_bytes(one) for one in small]))
    sent = [dist.isend(_bytes(message), dst=rank, group=group) for message in messages for rank in ranks]
    for one in sent:
        _wait(one)


def receive(tensors: Sequence[Tensor], rank: int, group: dist.ProcessGroup | None) -> None:
    """From that rank, into these, which are contiguous, and are given there in this order."""
    small, messages = _by_size([one.detach() for one in tensors])
    if small:
        messages.append(torch.empty(sum(one.nbytes for one in small), dtype=torch.uint8))
    coming = [dist.irecv(_bytes(message), src=rank, group=group) for message in messages]
    for one in coming:
        _wait(one)
    if small:
        for tensor, part in zip(small, messages[-1].split([one.nbytes for one in small]), strict=True):
            _bytes(tensor).copy_(part)


def _by_size(tensors: Sequence[Tensor]) -> tuple[list[Tensor], list[Tensor]]:
    small: list[Tensor] = []
    large: list[Tensor] = []
    for tensor in tensors:
        (large if tensor.nbytes >= _LARGE_BYTES else small).append(tensor)
    return small, large


def _wait(work: dist.Work | None) -> None:
    """None: this rank is not in the group."""
    if work is not None:
        work.wait()


def _bytes(tensor: Tensor) -> Tensor:
    """Where they lie."""
    return tensor.view(-1).view(torch.uint8)
