"""Plan which rank writes which part of a tensor where, and which parts each rank reads.

A part that several ranks have is written by one of them.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import msgspec
import numpy as np
import torch
from torch import Tensor

from trainer.checkpoint import shares
from trainer.checkpoint.save_group import SaveGroup
from trainer.checkpoint.shares import Share, TensorShares
from trainer.checkpoint.tree import dtype_of
from trainer.checkpoint_files.manifest import ITEM_BYTES, Chunk, TensorEntry, chunk_bytes
from trainer.errors import TrainerError

_ALIGNED = 64  # bytes: so that a part can be read as a tensor where it lies
_SMALL = _ALIGNED  # bytes: parts as small as this go into the first rank's file, which all ranks read anyway
_DECODER = msgspec.msgpack.Decoder(dict[str, TensorEntry])


@dataclass(frozen=True, slots=True)
class Part:
    """A box of a tensor, at `offsets` with `lengths`, and its place in this rank's file: `size` bytes from `at` on."""

    name: str
    offsets: tuple[int, ...]
    lengths: tuple[int, ...]
    dtype: torch.dtype
    at: int  # the offset in the file
    size: int  # in bytes


@dataclass(frozen=True, slots=True)
class WritePlan:
    """The parts that this rank writes (`parts`, `size` bytes), and where each part of every tensor is (`tensors`).

    `signature` is that of the tensors that this rank had when the plan was made.
    """

    parts: tuple[Part, ...]
    size: int  # of this rank's parts
    tensors: dict[str, TensorEntry]
    signature: int  # of the tensors that this rank had when the plan was made


@dataclass(frozen=True, slots=True)
class Need:
    """A box of a tensor that this rank needs, and the saved part (`chunk`) that contains it.

    `inside` is where the box begins in that part, `offsets` where it begins in this rank's own part of the tensor, and
    `lengths` is its size.
    """

    name: str
    chunk: Chunk
    inside: tuple[int, ...]  # where it begins in that part
    offsets: tuple[int, ...]  # where it begins in what this rank has of the tensor
    lengths: tuple[int, ...]


def signature(tensors: Mapping[str, Tensor]) -> int:
    """Return a number that changes if the tensors' names, shapes or types do, so that a new plan is needed.

    It can be compared in this process alone, as Python's `hash` differs between processes.
    """
    return hash(tuple((name, tensor.shape, tensor.dtype) for name, tensor in tensors.items()))


def make_plan(tensors: dict[str, Tensor], save_group: SaveGroup) -> WritePlan:
    """Agree on which rank writes which parts, and return this rank's plan; the first rank of `save_group` decides.

    Every rank of `save_group`, the ranks that save together, calls it with the tensors, or shards of them, that it has.
    Raises TrainerError on all these ranks if a tensor is of a type that cannot be saved.
    """
    brought = save_group.reduce(shares.encode(shares.local_shares(tensors, save_group.me)), shares.merge)
    decided = (
        msgspec.msgpack.encode(decide(shares.decode(brought), len(save_group.ranks))) if brought is not None else b""
    )
    return plan_of(decode(save_group.broadcast(decided)), save_group.me, signature(tensors))


def decode(decided: bytes) -> dict[str, TensorEntry]:
    """Decode what `decide` has decided on the first rank: by tensor name, its entry, which says where its parts are."""
    return _DECODER.decode(decided)


def plan_of(tensors: dict[str, TensorEntry], me: int, own_signature: int) -> WritePlan:
    """Return the WritePlan of the rank at place `me` in the save group: which parts of the tensors it writes where.

    `own_signature` is a number made from the names, shapes and types of this rank's tensors (`signature`); when it
    changes, a new plan is needed. Raises TrainerError if a tensor is of a type that cannot be saved; the error is the
    same on all ranks.
    """
    for entry in tensors.values():
        if entry.dtype not in ITEM_BYTES:
            raise TrainerError(f"checkpoint: a tensor of type {entry.dtype} cannot be saved")
    parts = tuple(sorted(_parts(tensors, me), key=lambda part: part.at))
    return WritePlan(parts, _aligned(parts[-1].at + parts[-1].size) if parts else 0, tensors, own_signature)


def _parts(tensors: Mapping[str, TensorEntry], me: int) -> Iterator[Part]:
    """Yield the parts that the rank at place `me` of the save group writes, by the plan for all ranks, `tensors`."""
    for name, entry in tensors.items():
        for row in entry.rows:
            number, rest = divmod(me - row.file, row.stride)
            if rest == 0 and 0 <= number < row.count:
                part = row.part(number)
                size = chunk_bytes(entry, part)
                yield Part(name, part.offsets, part.lengths, dtype_of(entry.dtype), part.at, size)


def decide(brought: Mapping[str, TensorShares], ranks: int) -> dict[str, TensorEntry]:
    """Return, for each tensor, which rank writes each part, and where in that rank's file.

    `brought` has by tensor the parts of all `ranks` ranks. If several ranks have a part, the one with the fewest bytes
    to write so far gets it or, if the part is small, the first of them. Rows of many equal parts come first, so that
    their parts are at the same offsets in all files, and large parts before small ones.
    """
    ends = np.zeros(ranks, np.int64)
    rows: dict[str, list[Chunk]] = {name: [] for name in brought}
    todo = [
        (share.count, math.prod(share.lengths) * ITEM_BYTES.get(one.dtype, 0), name, share, firsts)
        for name, one in brought.items()
        for share, firsts in shares.separated(one.shares)
    ]
    for count, size, name, share, firsts in sorted(todo, key=lambda each: each[:2], reverse=True):
        choice = len(firsts) > 1 and size > _SMALL
        first = firsts[int(ends[list(firsts)].argmin())] if choice else firsts[0]
        mine = ends[first : first + count * share.stride : share.stride]
        rows[name] += _rows(share, first, mine)
        mine += _aligned(size)
    return {name: TensorEntry(one.dtype, one.shape, tuple(rows[name])) for name, one in brought.items()}


def _rows(share: Share, first: int, ats: "np.ndarray[tuple[int, ...], np.dtype[np.int64]]") -> Iterator[Chunk]:
    """Yield `share`, a row of equal parts, as few Chunks: a new one begins where the offset in the file changes.

    Each part is written by a rank into its own file: the first by the rank with number `first` in the save group, the
    next by the rank `share.stride` further. `ats` has each part's offset in its file.
    """
    cuts = [] if share.count == 1 else (np.flatnonzero(np.diff(ats)) + 1).tolist()
    whole = Chunk(first, 0, share.offsets, share.lengths, share.count, share.stride, share.dim)
    for begin, end in zip([0, *cuts], [*cuts, share.count], strict=True):
        part = whole.part(begin)
        yield Chunk(part.file, int(ats[begin]), part.offsets, part.lengths, end - begin, share.stride, share.dim)


def needs(tensors: Mapping[str, Tensor], saved: Mapping[str, TensorEntry]) -> list[Need]:
    """Return what one rank has to read for its parts of these tensors: a box for each saved part that overlaps them.

    A box is a range in each dimension. `saved` has the saved tensors, of the same names and unsharded shapes.
    """
    return [
        need
        for name, own in shares.local_shares(tensors, 0).items()
        for share in own.shares
        for row in saved[name].rows
        for need in needed(name, (share.offsets, share.lengths), row)
    ]


def needed(name: str, box: shares.Box, row: Chunk) -> Iterator[Need]:
    """Yield a Need, the piece to read, for each saved part that overlaps `box`, this rank's part of tensor `name`.

    `row` describes the saved parts: one, or several of the same size that follow each other along one dimension.
    """
    offsets, lengths = box
    for number in _overlapping(box, row):
        part = row.part(number) if row.count > 1 else row
        begins = tuple(map(max, offsets, part.offsets))
        ends = [min(a + n, b + m) for a, n, b, m in zip(offsets, lengths, part.offsets, part.lengths, strict=True)]
        sizes = tuple(end - begin for begin, end in zip(begins, ends, strict=True))
        if all(size > 0 for size in sizes):
            yield Need(name, part, _relative_to(begins, part.offsets), _relative_to(begins, offsets), sizes)


def _overlapping(box: shares.Box, row: Chunk) -> range:
    """Return the indexes of those parts in `row` that may overlap the box along the row's dimension.

    The parts of a row have the same size and follow each other along that dimension.
    """
    if row.count == 1:
        return range(1)
    step = row.lengths[row.dim]
    begin = box[0][row.dim] - row.offsets[row.dim]
    return range(max(0, begin // step), min(row.count, -(-(begin + box[1][row.dim]) // step))) if step else range(0)


def _relative_to(begins: tuple[int, ...], origin: tuple[int, ...]) -> tuple[int, ...]:
    """Return the coordinates `begins` relative to `origin`."""
    return tuple(begin - zero for begin, zero in zip(begins, origin, strict=True))


def _aligned(at: int) -> int:
    """Return the offset rounded up to a multiple of 64 bytes; each part in a file begins at such an offset."""
    return -(-at // _ALIGNED) * _ALIGNED


def local_part(tensor: Tensor, part: Part) -> Tensor:
    """Return this rank's data of `tensor`, without a copy: its shard of a DTensor, or the whole of any other tensor.

    Raises ValueError if its shape is not that of `part`, the box of the tensor that this rank planned to write.
    """
    local: Tensor = tensor.to_local() if hasattr(tensor, "to_local") else tensor
    if tuple(local.shape) != part.lengths:
        raise ValueError(f"{part.name}: planned for {part.lengths}, but it is {tuple(local.shape)} here")
    return local


def narrow(tensor: Tensor, offsets: Sequence[int], lengths: Sequence[int]) -> Tensor:
    """Return the box of the tensor that begins at these offsets and has these lengths, without a copy."""
    for dim, (begin, length) in enumerate(zip(offsets, lengths, strict=False)):  # a 0-d tensor has no dimension
        tensor = tensor.narrow(dim, begin, length)
    return tensor
