"""Describe which ranks share samples, layers or stages of the model in a distributed training. Pure functions.

Ranks of a node have neighbouring numbers, and a tensor-parallel group is made of neighbours: it is on one node if its
size divides the number of ranks there. Pipeline stages are as far apart as possible, because they exchange little.
"""

import re
from collections.abc import Sequence
from itertools import pairwise

_MESH = "--mesh"  # the option of `trainer`, and of scripts that have its options
_SIZE = r"(?:^|,)\s*{}\s*=\s*([1-9]\d{{0,5}})\s*(?:,|$)"


def tensor_parallel(args: Sequence[str]) -> int:
    """Return the tensor-parallel size `tp` that `--mesh` sets in a training's command-line arguments, or 1 if it sets
    none.
    """
    return _size("tp", args)


def pipeline_parallel(args: Sequence[str]) -> int:
    """Return the number of pipeline stages `pp` that `--mesh` sets in a training's command-line arguments, such as
    `--mesh dp=4,pp=2`, or 1 if it sets none.
    """
    return _size("pp", args)


def _size(name: str, args: Sequence[str]) -> int:
    """Return the size of the mesh dimension `name` in the script's arguments, such as 4 for `tp` in `--mesh dp=2,tp=4`,
    or 1 if they set none.
    """
    words = [word for one in args for word in (one.split("=", 1) if one.startswith(f"{_MESH}=") else [one])]
    found = [value for option, value in pairwise(words) if option == _MESH]
    match = re.search(_SIZE.format(name), found[-1]) if found else None
    return int(match[1]) if match else 1


def crosses_nodes(tp: int, ranks_per_node: int) -> str:
    """Return a warning if groups of `tp` tensor-parallel ranks cross nodes, which is slow, else ""."""
    if ranks_per_node % tp == 0:
        return ""
    return (
        f"tp={tp} crosses nodes of {ranks_per_node} rank{'s'[: ranks_per_node != 1]}: every layer waits for the network"
    )


def groups_of_node(tp: int, ranks_per_node: int) -> str:
    """Return a text on groups of `tp` ranks, such as `local ranks 0-1, 2-3 divide each layer (tp 2), on one node; dp
    goes across`.

    `tp` must divide `ranks_per_node`. Of more than four groups only the first three are named.
    """
    firsts = range(0, ranks_per_node, tp)
    names = [f"{first}-{first + tp - 1}" for first in firsts]
    shown = names if len(names) <= 4 else [*names[:3], "..."]  # of a large node the first ones say it all
    return f"local ranks {', '.join(shown)} divide each layer (tp {tp}), on one node; dp goes across"


def stages_of_ranks(pp: int, ranks: int) -> str:
    """Return a text such as `ranks 0-3 have the first of 2 stages of layers (pp 2), 4-7 the next`, for `pp` stages, at
    least 2, over `ranks` ranks in total.

    If that is no whole number of ranks for each stage, return a text that says so.
    """
    if ranks % pp:
        return f"pp={pp} does not divide {ranks} ranks: there is no such pipeline"
    each = ranks // pp
    first, *others = [f"{begin}-{begin + each - 1}" if each > 1 else str(begin) for begin in range(0, ranks, each)]
    shown = others if len(others) <= 3 else [*others[:2], "..."]  # of many the first ones say it all
    return f"ranks {first} have the first of {pp} stages of layers (pp {pp}), {', '.join(shown)} the next"
