"""Describe compactly which rank has which part of each tensor, merged on the way up a tree of ranks.

Ranks that shard a model evenly have parts that follow each other, and ranks that replicate it have the same ones. Both
are described by one Share, so that the description of a thousand ranks is hardly longer than that of one. Irregular
parts stay as they are.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from itertools import combinations

import msgspec
from torch import Tensor
from torch.distributed.checkpoint import default_planner

Box = tuple[tuple[int, ...], tuple[int, ...]]  # offsets and lengths
_FEW = 40


class Share(msgspec.Struct, array_like=True):
    """A row of `count` parts of a tensor along one dimension, the ranks that have them, and copies of the row.

    The rank at place `first` of the save group has the first part, at `offsets`; each part has `lengths`. The next part
    is on the rank `stride` further, and follows along `dim`. The row is there `copies` times: its next copy begins
    `copy_stride` ranks further.
    """

    first: int  # the place of the rank that has the first part
    offsets: tuple[int, ...]  # of the first part in the tensor
    lengths: tuple[int, ...]  # of each part
    count: int = 1  # of parts in the row
    stride: int = 1  # from the rank of one part to that of the next one
    dim: int = 0  # along which the parts follow each other
    copies: int = 1  # of the row, itself included
    copy_stride: int = 0  # from a rank to the one that has a copy of the same part


class TensorShares(msgspec.Struct, array_like=True):
    """The type and whole shape of a tensor, however it is sharded, and which rank has which part of it."""

    dtype: str
    shape: tuple[int, ...]
    shares: list[Share]  # each describes several parts at once, which follow each other on ranks in a row


_DECODER = msgspec.msgpack.Decoder(dict[str, TensorShares])


def local_shares(tensors: Mapping[str, Tensor], place: int) -> dict[str, TensorShares]:
    """Return, by tensor, the one part that this rank has: its shard of a DTensor, or the whole tensor.

    `place` is the rank's index in the save group. Raises TypeError for an item that is no tensor.
    """
    found: dict[str, TensorShares] = {}
    for item in default_planner.create_default_local_save_plan(dict(tensors), is_coordinator=True).items:
        data = item.tensor_data
        if data is None:
            raise TypeError(f"{item.index.fqn}: expected a tensor")
        brought = TensorShares(str(data.properties.dtype).removeprefix("torch."), tuple(data.size), [])
        # An empty shard of an uneven split has nothing to say.
        if data.chunk.sizes.numel() or not data.size.numel():
            brought.shares.append(Share(place, tuple(data.chunk.offsets), tuple(data.chunk.sizes)))
        found[item.index.fqn] = brought
    return found


def encode(brought: Mapping[str, TensorShares]) -> bytes:
    """Return the description of which rank has what (shares by tensor name) as bytes."""
    return msgspec.msgpack.encode(brought)


def decode(data: bytes) -> dict[str, TensorShares]:
    """Return the description (shares by tensor) that `encode` made into `data`."""
    return _DECODER.decode(data)


def merge(several: Iterable[bytes]) -> bytes:
    """Return one encoded description that joins several, each of some ranks, such as those of `encode`.

    The ranks are neighbours, and the descriptions come in the order of the ranks' places in the save group.
    """
    whole: dict[str, TensorShares] = {}
    for one in several:
        for name, brought in decode(one).items():
            known = whole.setdefault(name, brought)
            if known is not brought:
                known.shares += brought.shares
    for brought in whole.values():
        brought.shares = _merged(brought.shares, brought.shape)
    return encode(whole)


def _merged(shares: list[Share], shape: tuple[int, ...]) -> list[Share]:
    """Return the shares of a tensor of this shape, with neighbours joined into as few shares as possible.

    One share can describe a row of parts on ranks at equal distances, and copies of such a row on further ranks.
    """
    before = 0
    while 1 < len(shares) != before:
        before = len(shares)
        shares = _merged_neighbours(shares, lambda share: share.offsets, _add_copy)
        for dim in range(len(shape)):
            shares = _merged_neighbours(shares, partial(_next_offsets, dim), partial(_extend, dim))
            shares = [one for share in shares for one in _split_full_row(share, dim, shape)]
    return shares


def _merged_neighbours(
    shares: list[Share], end: Callable[[Share], tuple[int, ...]], add: Callable[[Share, Share], bool]
) -> list[Share]:
    """Return the shares, each joined to an earlier one that it continues, if there is one.

    `end(share)` gives the offsets at which a following share begins. `add(earlier, share)` extends the earlier one and
    returns True, or returns False and changes nothing.
    """
    kept: list[Share] = []
    ending: dict[Box, Share] = {}
    for share in shares:
        earlier = ending.pop((share.offsets, share.lengths), None)
        if earlier is None or not add(earlier, share):
            kept.append(share)
            earlier = share
        ending[end(earlier), earlier.lengths] = earlier
    return kept


def _add_copy(share: Share, other: Share) -> bool:
    """Add `other` to the copies of `share` if it is the next copy of the same row; return whether it was added.

    A row is several parts of a tensor, on ranks at equal distances; a copy of it has the same parts on other ranks. The
    next copy has to begin `copy_stride` ranks after the last one. The caller has checked that both begin with the same
    part.
    """
    copy_stride = share.copy_stride if share.copies > 1 else other.first - share.first
    row = (share.count, share.stride, share.dim) == (other.count, other.stride, other.dim)
    if (
        not row
        or other.first != share.first + share.copies * copy_stride
        or (other.copies > 1 and other.copy_stride != copy_stride)
    ):
        return False
    share.copies, share.copy_stride = share.copies + other.copies, copy_stride
    return True


def _next_offsets(dim: int, share: Share) -> tuple[int, ...]:
    """Return the offsets in the tensor at which the next part along dimension `dim` has to begin to be joined.

    A share is one part, or a row of `count` equal parts along `share.dim`. If `share.dim` is `dim`, the next part
    begins behind the whole row; else it begins behind the row's first part.
    """
    many = share.count if share.dim == dim else 1
    begin = share.offsets[dim] + many * share.lengths[dim]
    return (*share.offsets[:dim], begin, *share.offsets[dim + 1 :])


def _extend(dim: int, share: Share, other: Share) -> bool:
    """Append the parts of `other` to those of `share` if both make one row along `dim`; return whether they do.

    The caller has checked that `other` begins in the tensor where `share` ends. They make one row if their ranks are
    also at the same distance (`stride`) from part to part, and both have equally many copies at the same distance. If
    not, nothing is changed.
    """
    stride = share.stride if share.count > 1 else other.first - share.first
    rows = all(one.count == 1 or (one.stride, one.dim) == (stride, dim) for one in (share, other))
    copies = (share.copies, share.copy_stride) == (other.copies, other.copy_stride)
    if not rows or not copies or stride < 1 or other.first != share.first + share.count * stride:
        return False
    share.count, share.stride, share.dim = share.count + other.count, stride, dim
    return True


def _split_full_row(share: Share, dim: int, shape: tuple[int, ...]) -> Iterable[Share]:
    """Split a share, a row of parts, into Shares of one part each if the next join needs that; else return the share.

    It is split if the row spans the whole dimension `dim` (not 0) of a tensor of the shape `shape`, but not dimension
    0. A Share describes parts along one dimension only, so the parts must be apart to be joined along dimension 0.
    """
    whole = share.count * share.lengths[dim] == shape[dim]
    if share.count == 1 or share.dim != dim or dim == 0 or not whole or share.lengths[0] == shape[0]:
        return (share,)
    return singles(share)


def singles(share: Share) -> list[Share]:
    """Return one share for each part of the row `share`, in order: with the part's offsets and the rank that has it.

    If several ranks have copies of the row, each of these shares has the same number of copies.
    """
    found = []
    for number in range(share.count):
        begin = share.offsets[share.dim] + number * share.lengths[share.dim] if share.offsets else 0
        offsets = (*share.offsets[: share.dim], begin, *share.offsets[share.dim + 1 :]) if share.offsets else ()
        first = share.first + number * share.stride
        found.append(Share(first, offsets, share.lengths, copies=share.copies, copy_stride=share.copy_stride))
    return found


def separated(shares: list[Share]) -> list[tuple[Share, Sequence[int]]]:
    """Return each share with the places in the save group of the ranks that have the first part of its row.

    There is one such rank for each copy of the row. If any shares overlap, or are too many to compare, all are first
    divided into shares of one part. Each of these is returned once, with all ranks that have it.
    """
    boxes = [(share.offsets, _row_lengths(share)) for share in shares]
    if len(shares) <= _FEW and not any(_overlap(*pair) for pair in combinations(boxes, 2)):
        return [(share, _first_ranks(share)) for share in shares]
    holders: dict[Box, list[int]] = {}
    for one in (one for share in shares for one in singles(share)):
        holders.setdefault((one.offsets, one.lengths), []).extend(_first_ranks(one))
    return [(Share(ranks[0], *box), sorted(ranks)) for box, ranks in holders.items()]


def _first_ranks(share: Share) -> range:
    """Return the ranks, as places in the group of ranks that save, that have the first part of the share's row.

    There is one for each copy of the row.
    """
    return range(share.first, share.first + share.copies * max(1, share.copy_stride), max(1, share.copy_stride))


def _row_lengths(share: Share) -> tuple[int, ...]:
    """Return the lengths, by dimension, of the box that all parts of the share's row cover together."""
    return tuple(n * share.count if dim == share.dim else n for dim, n in enumerate(share.lengths))


def _overlap(one: Box, other: Box) -> bool:
    """Return whether two boxes of a tensor, each (offsets, lengths) by dimension, overlap."""
    return all(a < b + m and b < a + n for a, n, b, m in zip(*one, *other, strict=True))
