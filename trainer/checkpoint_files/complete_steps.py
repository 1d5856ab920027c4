"""Decide from which steps a training can continue: those of which every part still exists; a pure function.

| state | its parts |
|---|---|
| the weights of a step, if each rank has all of them | one |
| shards, of which some ranks have the same | each shard |
| a snapshot, in the memory of a node, or its copy on the next one | that of each rank |
| a checkpoint, on separate disks | that of each disk |

The newest step counts: that of the surviving ranks first, then snapshots, then checkpoints unless they are as new.
"""

from collections.abc import Collection, Hashable, Iterable, Mapping
from typing import Any, TypeVar

Step = TypeVar("Step", bound=Hashable)


def whole(who_has: Iterable[Mapping[Any, Collection[Step]]]) -> set[Step]:
    """Return the steps of which every part has a holder.

    `who_has` gives for each holder (a rank, node or disk) a mapping: the part that it has, with the steps of which it
    has that part.
    """
    found: dict[Any, set[Step]] = {}
    for one in who_has:
        for part, steps in one.items():
            found.setdefault(part, set()).update(steps)
    return set.intersection(*found.values()) if found else set()
