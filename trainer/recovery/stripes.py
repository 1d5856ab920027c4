"""Divide the bytes that several ranks have alike among them, for a rank that needs them; pure functions.

tensors, by name     | a ...... | b | c ............... |
stripes of givers    | first ...... | second ... | third |
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise

_LEAST_BYTES = 1 << 20  # of a stripe: less is not worth the messages of one more giver


@dataclass(frozen=True, slots=True)
class Piece:
    """A range of bytes of one of the tensors."""

    tensor: int
    begin: int
    end: int


def senders_of(receiver: int, receivers: Collection[int], size: int, ranks_per_node: int) -> list[int]:
    """Return the ranks that send to the taker: those of its own node that have the state, else all that have it."""
    senders = [rank for rank in range(size) if rank not in receivers]
    near = [rank for rank in senders if rank // ranks_per_node == receiver // ranks_per_node]
    return near or senders


def stripes(sizes: Sequence[int], senders: int, least_bytes: int = _LEAST_BYTES) -> list[list[Piece]]:
    """Return what each giver sends of tensors of these sizes: equal shares of at least `least_bytes`.

    If all of it is little, one sends everything and the others nothing.
    """
    ends = [*accumulate(sizes, initial=0)]
    total, places = ends[-1], [*enumerate(pairwise(ends))]
    used = max(1, min(senders, total // least_bytes))
    cuts = [sender * total // used for sender in range(used + 1)] + [total] * (senders - used)
    return [
        [
            Piece(tensor, max(first, begin) - begin, min(last, end) - begin)
            for tensor, (begin, end) in places
            if max(first, begin) < min(last, end)
        ]
        for first, last in pairwise(cuts)
    ]
