"""Send tensors from one rank to others: large ones without copies, small ones together.

On one node a rank reads them from the other's memory if the system allows it; otherwise they are sent.
"""

import logging
import os
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from trainer.recovery.process_memory import read, readable
from trainer.world import World

log = logging.getLogger("trainer")
_LARGE_BYTES = (
    1 << 20
)  # a tensor of so many is a message of its own; fewer in all are not worth the messages of reading


def send(parcels: Iterable[tuple[Sequence[int], Sequence[Tensor]]], world: World) -> None:
    """Send each list of tensors to its ranks, all at once; tensors on a GPU are copied to the host first."""
    sent: list[tuple[dist.Work | None, Tensor]] = []
    for ranks, tensors in parcels:
        values = [one.detach().cpu().contiguous() for one in tensors]
        far = [rank for rank in ranks if not (_may_read(values, rank, world) and _let_peer_read(values, rank, world))]
        if not far:
            continue
        small, messages = _by_size(values)
        if small:
            messages.append(torch.cat([bytes_of(one) for one in small]))
        sent += [
            (dist.isend(bytes_of(message), dst=rank, group=world.control), message)
            for message in messages
            for rank in far
        ]
    for one, _ in sent:
        _wait(one)


def receive(parcels: Mapping[int, Sequence[Tensor]], world: World) -> None:
    """Receive tensors from all these ranks at once, into contiguous tensors in the order in which they are sent."""
    coming: list[dist.Work | None] = []
    together: list[tuple[list[Tensor], Tensor]] = []
    for rank, given in parcels.items():
        tensors = [one.detach() for one in given]
        if _may_read(tensors, rank, world) and _read_from_peer(tensors, rank, world):
            continue
        small, messages = _by_size(tensors)
        if small:
            messages.append(torch.empty(sum(one.nbytes for one in small), dtype=torch.uint8))
            together.append((small, messages[-1]))
        coming += [dist.irecv(bytes_of(message), src=rank, group=world.control) for message in messages]
    for one in coming:
        _wait(one)
    for small, message in together:
        for tensor, part in zip(small, message.split([one.nbytes for one in small]), strict=True):
            bytes_of(tensor).copy_(part)


def _may_read(tensors: Sequence[Tensor], rank: int, world: World) -> bool:
    """Return whether the receiver should read the sender's memory; both sides compute the same."""
    near = rank // world.local_size == world.rank // world.local_size
    return near and sum(one.nbytes for one in tensors) >= _LARGE_BYTES


def _let_peer_read(tensors: Sequence[Tensor], rank: int, world: World) -> bool:
    """Let that rank read the tensors from this process's memory, and return whether it did."""
    received: list[Any] = [None]
    dist.recv_object_list(received, src=rank, group=world.control)
    with readable(tensors, by=received[0]) as places:
        dist.send_object_list([places], dst=rank, group=world.control)
        dist.recv_object_list(received, src=rank, group=world.control)
    return bool(received[0])


def _read_from_peer(tensors: Sequence[Tensor], rank: int, world: World) -> bool:
    """Read the tensors from the memory of that rank, which waits meanwhile; return whether it worked."""
    dist.send_object_list([os.getpid()], dst=rank, group=world.control)
    received: list[Any] = [None]
    dist.recv_object_list(received, src=rank, group=world.control)
    try:
        read(received[0], tensors)
        done = True
    except OSError as error:
        log.info("rank %d sends its state over the network: %s", rank, error)
        done = False
    dist.send_object_list([done], dst=rank, group=world.control)
    return done


def bytes_of(tensor: Tensor) -> Tensor:
    """Return a flat view of the tensor's bytes."""
    return tensor.view(-1).view(torch.uint8)


def _by_size(tensors: Sequence[Tensor]) -> tuple[list[Tensor], list[Tensor]]:
    """Return the small tensors, and the large ones."""
    small: list[Tensor] = []
    large: list[Tensor] = []
    for tensor in tensors:
        (large if tensor.nbytes >= _LARGE_BYTES else small).append(tensor)
    return small, large


def _wait(work: dist.Work | None) -> None:
    """Wait for the operation; None means that this rank is not in the group."""
    if work is not None:
        work.wait()
