"""The unsharded tensors of a checkpoint, some rows at a time, whatever the layout in which they were saved."""

import hashlib
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch

from trainer.checkpoint.planning import Need, narrow, needed
from trainer.checkpoint.staging import bytes_of
from trainer.checkpoint.tree import dtype_of
from trainer.checkpoint_files.manifest import ITEM_BYTES, Manifest, TensorEntry, chunk_bytes

Read = Callable[[int, memoryview, int], object]  # of a file by its number, into this, from there on
OF_TRAINING = ("model/", "optimizer/")
_BLOCK_BYTES = 64 << 20


@dataclass(frozen=True, slots=True)
class Block:
    """Some rows of a tensor: what one rank digests at a time. How a tensor is divided depends on its shape alone."""

    name: str
    entry: TensorEntry
    offsets: tuple[int, ...]
    lengths: tuple[int, ...]

    def needs(self) -> list[Need]:
        box = (self.offsets, self.lengths)
        return [need for row in self.entry.rows for need in needed(self.name, box, row)]

    def digest(self, read: Read) -> bytes:
        """Of the bytes of all parts in their places."""
        whole = torch.empty(self.lengths, dtype=dtype_of(self.entry.dtype))
        for need in self.needs():
            # Rows of a part lie one behind the other in its file.
            first, rows = (need.inside[0], need.lengths[0]) if need.lengths else (0, 1)
            size = chunk_bytes(self.entry, need.chunk) // (need.chunk.lengths[0] if need.lengths else 1)
            raw = torch.empty(rows * size, dtype=torch.uint8)
            read(need.chunk.file, bytes_of(raw), need.chunk.at + first * size)
            if need.lengths == self.lengths and need.chunk.lengths[1:] == self.lengths[1:]:
                return hashlib.sha256(bytes_of(raw)).digest()
            source = raw.view(whole.dtype).view(rows, *need.chunk.lengths[1:])
            narrow(whole, need.offsets, need.lengths).copy_(narrow(source, (0, *need.inside[1:]), need.lengths))
        return hashlib.sha256(bytes_of(whole.reshape(-1).view(torch.uint8))).digest()


def blocks(manifest: Manifest) -> Iterator[Block]:
    """Of the whole model and optimizer, in the order of their names."""
    for name in sorted(manifest.tensors):
        if name.startswith(OF_TRAINING):
            yield from blocks_of(name, manifest.tensors[name])


def blocks_of(name: str, entry: TensorEntry) -> Iterator[Block]:
    """Of one tensor."""
    if not entry.shape:
        yield Block(name, entry, (), ())
    elif 0 not in entry.shape:
        first, *rest = entry.shape
        rows = max(1, _BLOCK_BYTES // (math.prod(rest) * ITEM_BYTES[entry.dtype]))
        for begin in range(0, first, rows):
            yield Block(name, entry, (begin, *(0 for _ in rest)), (min(rows, first - begin), *rest))
