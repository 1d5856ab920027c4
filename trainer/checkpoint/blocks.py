"""Divide the unsharded tensors of a checkpoint into blocks of rows, whatever layout they were saved in."""

import hashlib
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch

from trainer.checkpoint.filling import Scratch, piece_of, places
from trainer.checkpoint.planning import Need, needed
from trainer.checkpoint.staging import bytes_of
from trainer.checkpoint.tree import dtype_of
from trainer.checkpoint_files.manifest import ITEM_BYTES, Manifest, TensorEntry

Read = Callable[[int, memoryview, int], object]  # of a file by its number, into this, from there on
OF_TRAINING = ("average/", "model/", "optimizer/")
_BLOCK_BYTES = 64 << 20


@dataclass(frozen=True, slots=True)
class Block:
    """Some rows of a tensor, as one rank digests them at a time; the division depends on the shape alone."""

    name: str
    entry: TensorEntry
    offsets: tuple[int, ...]
    lengths: tuple[int, ...]

    def needs(self) -> list[Need]:
        """Return the saved parts that make up the block."""
        box = (self.offsets, self.lengths)
        return [need for row in self.entry.rows for need in needed(self.name, box, row)]

    def digest(self, read: Read) -> bytes:
        """Return the SHA-256 of the block's bytes."""
        whole, scratch = torch.empty(self.lengths, dtype=dtype_of(self.entry.dtype)), Scratch()
        for need in self.needs():
            for at, memory in places([piece_of(whole, self.entry, need)], scratch):
                read(need.chunk.file, memory, at)
        return hashlib.sha256(bytes_of(whole.reshape(-1).view(torch.uint8))).digest()


def blocks(manifest: Manifest, block_bytes: int = _BLOCK_BYTES) -> Iterator[Block]:
    """Yield the blocks of the whole model and optimizer, in the order of their names; `block_bytes` as `blocks_of`."""
    for name in sorted(manifest.tensors):
        if name.startswith(OF_TRAINING):
            yield from blocks_of(name, manifest.tensors[name], block_bytes)


def blocks_of(name: str, entry: TensorEntry, block_bytes: int = _BLOCK_BYTES) -> Iterator[Block]:
    """Yield the blocks of one tensor: as many rows as have at most `block_bytes`, but at least one."""
    if not entry.shape:
        yield Block(name, entry, (), ())
    elif 0 not in entry.shape:
        first, *rest = entry.shape
        rows = max(1, block_bytes // (math.prod(rest) * ITEM_BYTES[entry.dtype]))
        for begin in range(0, first, rows):
            yield Block(name, entry, (begin, *(0 for _ in rest)), (min(rows, first - begin), *rest))
