"""Who gives which bytes to a rank that needs the state which several ranks have alike. Pure.

tensors, by name     | a ...... | b | c ............... |
stripes of givers    | first ...... | second ... | third |
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise

_LEAST_BYTES = 1 << 20  # of a stripe: less is not worth the messages of one more giver


@dataclass(frozen=True, slots=True)
class Piece:
    """Bytes of one of the tensors."""

    tensor: int
    begin: int
    end: int


def givers_of(taker: int, takers: Collection[int], size: int, ranks_per_node: int) -> list[int]:
    """The ranks that give to it: those of its own node, of which no byte crosses the network; else all that have it."""
    givers = [rank for rank in range(size) if rank not in takers]
    near = [rank for rank in givers if rank // ranks_per_node == taker // ranks_per_node]
    return near or givers


def stripes(sizes: Sequence[int], givers: int, least_bytes: int = _LEAST_BYTES) -> list[list[Piece]]:
    """Return by giver what it gives of tensors of these sizes: as much as any other giver, in stripes of at least
    `least_bytes`; so where all of it is little, one gives everything and the others nothing.
    """
    ends = [*accumulate(sizes, initial=0)]
    total, places = ends[-1], [*enumerate(pairwise(ends))]
    used = max(1, min(givers, total // least_bytes))
    cuts = [giver * total // used for giver in range(used + 1)] + [total] * (givers - used)
    return [
        [
            Piece(tensor, max(first, begin) - begin, min(last, end) - begin)
            for tensor, (begin, end) in places
            if max(first, begin) < min(last, end)
        ]
        for first, last in pairwise(cuts)
    ]
