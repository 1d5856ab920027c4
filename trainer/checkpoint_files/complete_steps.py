"""Decide from which steps a training can continue: those of which every part still exists; a pure function.

| what is held | its parts |
|---|---|
| the weights of a step, where each rank has all of them | one |
| shards of them that some ranks have alike | each shard |
| a snapshot, in the memory of a node, or its copy on the next one | that of each rank |
| a checkpoint, on disks apart | that of each disk |

The newest step counts: that of the surviving ranks first, then snapshots, then checkpoints unless they are as new.
"""

from collections.abc import Collection, Hashable, Iterable, Mapping
from typing import Any, TypeVar

Step = TypeVar("Step", bound=Hashable)


def whole(who_has: Iterable[Mapping[Any, Collection[Step]]]) -> set[Step]:
    """Return the steps of which every part has a holder.

    Each mapping in `who_has` gives, by part, the steps of which one holder has that part.
    """
    found: dict[Any, set[Step]] = {}
    for one in who_has:
        for part, steps in one.items():
            found.setdefault(part, set()).update(steps)
    return set.intersection(*found.values()) if found else set()
