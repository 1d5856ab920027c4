"""Which ranks of a node work on the same samples, where a training divides its layers over ranks. Pure.

Ranks of a node have neighbouring numbers, and a tensor-parallel group is made of neighbours: it is on one node wherever
its size divides the number of ranks there.
"""

import re
from collections.abc import Sequence
from itertools import pairwise

_MESH = "--mesh"  # the option of `trainer`, and of scripts that have its options
_TP = re.compile(r"(?:^|,)\s*tp\s*=\s*([1-9]\d{0,5})\s*(?:,|$)")


def tensor_parallel(args: Sequence[str]) -> int:
    """How many ranks divide each layer, by what a training is told; 1: none do."""
    found = [value for name, value in pairwise(args) if name == _MESH]
    match = _TP.search(found[-1]) if found else None
    return int(match[1]) if match else 1


def crosses_nodes(tp: int, ranks_per_node: int) -> str:
    """What is slow about it; empty where groups are on one node each."""
    if ranks_per_node % tp == 0:
        return ""
    return (
        f"tp={tp} crosses nodes of {ranks_per_node} rank{'s'[: ranks_per_node != 1]}: every layer waits for the network"
    )


def groups_of_node(tp: int, ranks_per_node: int) -> str:
    """In words: `local ranks 0-1, 2-3 divide each layer (tp 2), on one node; dp goes across`."""
    firsts = range(0, ranks_per_node, tp)
    names = [f"{first}-{first + tp - 1}" for first in firsts]
    shown = names if len(names) <= 4 else [*names[:3], "..."]  # of a large node the first ones say it all
    return f"local ranks {', '.join(shown)} divide each layer (tp {tp}), on one node; dp goes across"
