"""From which steps a training can go on: those of which each part is with somebody who is here. Pure.

| what somebody may have | its parts |
|---|---|
| the weights of a step, where each rank has all of them | one |
| shards of them that some ranks have alike | each shard |
| a share of the optimizer, in the memory of a node | that of each rank, and the weights |
| a snapshot, in the memory of a node, or its copy on the next one | that of each rank |
| a checkpoint, on disks apart | that of each disk |

The newest counts. Where ranks that live, or the memory of their nodes, have a step whole, that is the newest there is;
then come snapshots, and checkpoints unless their step is as new.
"""

from collections.abc import Collection, Hashable, Iterable, Mapping
from typing import Any, TypeVar

Step = TypeVar("Step", bound=Hashable)


def whole(who_has: Iterable[Mapping[Any, Collection[Step]]]) -> set[Step]:
    """By who is here: of which steps it has which part. A part counts that is named, even where nobody has it."""
    found: dict[Any, set[Step]] = {}
    for one in who_has:
        for part, steps in one.items():
            found.setdefault(part, set()).update(steps)
    return set.intersection(*found.values()) if found else set()
