"""Read bytes of a file into tensors, straight into their memory if type and layout agree."""

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from trainer.checkpoint.planning import Need, narrow
from trainer.checkpoint.staging import bytes_of
from trainer.checkpoint.tree import dtype_of
from trainer.checkpoint_files.manifest import ITEM_BYTES, TensorEntry


@dataclass(frozen=True, slots=True)
class Piece:
    """A range of bytes of a file, `size` bytes from offset `at`, and where they go.

    They are read straight into `memory`, or, if it is None, into a scratch buffer; `put` is then called with these
    bytes as a uint8 tensor and copies them to their place. `pinned` asks for a scratch buffer in page-locked memory.
    """

    at: int  # the offset in the file
    size: int
    memory: memoryview | None  # to read into; None: `put` is called with the bytes
    put: Callable[[Tensor], object] = lambda _: None
    pinned: bool = False


class Scratch:
    """A reused buffer for file contents that cannot be read straight into a tensor."""

    def __init__(self) -> None:
        self._buffer = torch.empty(0, dtype=torch.uint8)

    def of(self, size: int, *, pinned: bool) -> Tensor:
        """Return the first `size` bytes of the buffer as a tensor; the next call returns the same memory.

        A buffer that is too small is replaced by a larger one, which is page-locked with `pinned`.
        """
        if self._buffer.numel() < size:
            self._buffer = torch.empty(size, dtype=torch.uint8, pin_memory=pinned)
        return self._buffer[:size]


def places(pieces: Iterable[Piece], scratch: Scratch) -> Iterator[tuple[int, memoryview]]:
    """Yield the offset in the file and the memory to read into, for each piece in the order of the file.

    That is the tensor's own memory if the file's bytes fit there, else `scratch`. The caller fills it before it asks
    for the next one; only then is a piece in `scratch` converted and copied to its tensor.
    """
    for piece in sorted(pieces, key=lambda piece: piece.at):
        if piece.memory is not None:
            yield piece.at, piece.memory
        elif piece.size:
            raw = scratch.of(piece.size, pinned=piece.pinned)
            yield piece.at, bytes_of(raw)
            with torch.no_grad():
                piece.put(raw)


def piece_of(target: Tensor, entry: TensorEntry, need: Need) -> Piece:
    """Return the Piece for one Need: which bytes of the file to read, and how they get into this rank's `target`.

    `entry` describes the saved tensor. `need` names one of the parts in which it was saved, a box in that part, and
    where in the local part of `target` the values of the box go.
    """
    chunk = need.chunk
    dtype, row = dtype_of(entry.dtype), math.prod(chunk.lengths[1:]) * ITEM_BYTES[entry.dtype]
    whole = target.detach()
    local: Tensor = whole.to_local() if hasattr(whole, "to_local") else whole
    part = narrow(local, need.offsets, need.lengths)
    # Rows of the part lie one behind the other in the file.
    first, rows = (need.inside[0], need.lengths[0]) if chunk.lengths else (0, 1)
    at, size = chunk.at + first * row, rows * row
    if size and need.lengths[1:] == chunk.lengths[1:] and _takes_bytes(part, dtype):
        return Piece(at, size, bytes_of(part.reshape(-1).view(torch.uint8)))

    def put(raw: Tensor) -> None:
        """Copy the bytes read into the part of the tensor that needs them."""
        source = raw.view(dtype).view(rows, *chunk.lengths[1:]) if chunk.lengths else raw.view(dtype).view(())
        part.copy_(narrow(source, (0, *need.inside[1:]), need.lengths))

    return Piece(at, size, None, put, pinned=part.device.type == "cuda")


def _takes_bytes(target: Tensor, dtype: torch.dtype) -> bool:
    """Return whether the tensor is contiguous, on the CPU and of type `dtype`, so that bytes can be read into it."""
    return target.device.type == "cpu" and target.dtype == dtype and target.is_contiguous()
