"""A description and tensors behind it, in one piece of memory: each lies where it may be read in place.

length of the description, description    tensor    tensor ...
"""

import math
import struct
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from trainer.checkpoint.tree import dtype_of

_LENGTH = struct.Struct("<Q")
_ALIGNED = 64


class CannotKeep(Exception):
    """It holds something else than tensors and plain values; or there is no room for it."""


@dataclass(frozen=True, slots=True)
class Packed:
    """What is to be put there: the tensors as they are then."""

    described: bytes
    tensors: Sequence[Tensor]
    places: Sequence[int]
    size: int

    @classmethod
    def of(cls, described: bytes, tensors: Sequence[Tensor]) -> "Packed":
        places, size = _places(len(described), [one.nbytes for one in tensors])
        return cls(described, tensors, places, size)

    def put(self, content: memoryview) -> None:
        begin = _LENGTH.size + len(self.described)
        content[:begin] = _LENGTH.pack(len(self.described)) + self.described
        flat = torch.frombuffer(content, dtype=torch.uint8)
        with torch.no_grad():
            for tensor, at in zip(self.tensors, self.places, strict=True):
                _part(flat, at, tensor.dtype, tensor.shape).copy_(tensor)


def described_in(content: memoryview) -> memoryview:
    [length] = _LENGTH.unpack_from(content)
    return content[_LENGTH.size : _LENGTH.size + length]


def tensors_in(content: memoryview, forms: Sequence[tuple[str, Sequence[int]]]) -> Iterator[Tensor]:
    """Where they lie; of these types and shapes, as the description has them."""
    described = len(described_in(content))
    places, _ = _places(described, [math.prod(shape) * dtype_of(dtype).itemsize for dtype, shape in forms])
    flat = torch.frombuffer(content, dtype=torch.uint8)
    return (_part(flat, at, dtype_of(dtype), shape) for (dtype, shape), at in zip(forms, places, strict=True))


def _places(described: int, sizes: Iterable[int]) -> tuple[list[int], int]:
    """Where each tensor lies behind the description, and where they end."""
    at, places = _LENGTH.size + described, []
    for size in sizes:
        at = -(-at // _ALIGNED) * _ALIGNED
        places.append(at)
        at += size
    return places, at


def _part(flat: Tensor, at: int, dtype: torch.dtype, shape: Sequence[int]) -> Tensor:
    size = math.prod(shape) * dtype.itemsize
    return flat[at : at + size].view(dtype).view(tuple(shape))
