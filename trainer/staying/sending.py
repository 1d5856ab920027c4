"""Tensors from one rank to others: the large ones from where they lie to where they belong, the small ones together."""

from collections.abc import Iterable, Mapping, Sequence

import torch
import torch.distributed as dist
from torch import Tensor

_LARGE_BYTES = 1 << 20  # a tensor of so many is a message of its own


def send(parcels: Iterable[tuple[Sequence[int], Sequence[Tensor]]], group: dist.ProcessGroup | None) -> None:
    """Each to its ranks, all at once. What is on a GPU by way of the host."""
    sent: list[tuple[dist.Work | None, Tensor]] = []
    for ranks, tensors in parcels:
        small, messages = _by_size([one.detach().cpu().contiguous() for one in tensors])
        if small:
            messages.append(torch.cat([bytes_of(one) for one in small]))
        sent += [
            (dist.isend(bytes_of(message), dst=rank, group=group), message) for message in messages for rank in ranks
        ]
    for one, _ in sent:
        _wait(one)


def receive(parcels: Mapping[int, Sequence[Tensor]], group: dist.ProcessGroup | None) -> None:
    """From these ranks at once, into these, which are contiguous, and are given there in this order."""
    coming: list[dist.Work | None] = []
    together: list[tuple[list[Tensor], Tensor]] = []
    for rank, tensors in parcels.items():
        small, messages = _by_size([one.detach() for one in tensors])
        if small:
            messages.append(torch.empty(sum(one.nbytes for one in small), dtype=torch.uint8))
            together.append((small, messages[-1]))
        coming += [dist.irecv(bytes_of(message), src=rank, group=group) for message in messages]
    for one in coming:
        _wait(one)
    for small, message in together:
        for tensor, part in zip(small, message.split([one.nbytes for one in small]), strict=True):
            bytes_of(tensor).copy_(part)


def bytes_of(tensor: Tensor) -> Tensor:
    """Where they lie."""
    return tensor.view(-1).view(torch.uint8)


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
