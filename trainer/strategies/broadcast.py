"""Broadcast rank 0's tensors to all ranks: weights at the start, buffers before each training step."""

from collections.abc import Iterable, Iterator

import torch
import torch.distributed as dist
from torch import Tensor, nn

_MESSAGE_BYTES = 64 * 2**20


def broadcast_from_first(tensors: Iterable[Tensor], group: dist.ProcessGroup | None = None) -> None:
    """Copy rank 0's values to every rank; all ranks call it, with tensors of the same shapes.

    `group` is a group of all ranks to use in place of the default one.
    """
    with torch.no_grad():
        for some in _messages(tensors):
            _broadcast_together(some, group)


class PersistentBuffers:
    """The buffers of a module that a checkpoint contains.

    Others (masks, tables) are made again whenever the model is made, and do not change.
    """

    def __init__(self, module: nn.Module) -> None:
        # Found once: to walk through a large model costs milliseconds, in every step. Not by state_dict(), which under
        # FSDP2 costs even more.
        self._places = [
            (part, name)
            for part in module.modules()
            for name in part._buffers  # noqa: SLF001 - named_buffers() leaves out those that are None by now
            if name not in part._non_persistent_buffers_set  # noqa: SLF001 - there is no public way
        ]

    def tensors(self) -> list[Tensor]:
        """Return the current persistent buffers, each once; a module may replace them between calls."""
        found = (part._buffers[name] for part, name in self._places)  # noqa: SLF001 - getattr() might ask a descriptor
        return list({id(buffer): buffer for buffer in found if buffer is not None}.values())


def _messages(tensors: Iterable[Tensor]) -> Iterator[list[Tensor]]:
    """Yield the tensors in lists, each to be sent as one message; a list ends once it has 64 MiB.

    Tensors with larger elements come first, so that each is aligned in its message.
    """
    some: list[Tensor] = []
    size = 0
    for tensor in sorted(tensors, key=lambda tensor: -tensor.element_size()):
        some.append(tensor)
        size += tensor.nbytes
        if size >= _MESSAGE_BYTES:
            yield some
            some, size = [], 0
    if size:
        yield some


def _broadcast_together(tensors: list[Tensor], group: dist.ProcessGroup | None) -> None:
    """Copy rank 0's values of these tensors, of any types, into those of the other ranks, as the bytes of one message.

    It is sent over `group`; None is the default group. Every rank has tensors of the same sizes in the same order.
    """
    message = torch.cat([tensor.detach().contiguous().reshape(-1).view(torch.uint8) for tensor in tensors])
    dist.broadcast(message, src=0, group=group)
    if dist.get_rank() == 0:
        return
    parts = message.split([tensor.nbytes for tensor in tensors])
    for tensor, part in zip(tensors, parts, strict=True):
        tensor.copy_(part.view(tensor.dtype).view(tensor.shape))
