"""Decide which checkpoints may be deleted; pure functions."""

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple


class Save(NamedTuple):
    """A save of a checkpoint: its step and a random name, the nonce, as a step may be saved again.

    Its files may be on one disk or several.
    """

    step: int
    nonce: str


class Parts(NamedTuple):
    """The names of a checkpoint's files: those that this disk has, and those that it lacks."""

    here: frozenset[str]
    away: frozenset[str]


Stock = Mapping[Save, Parts]  # of one disk


def expired(
    steps: Collection[int],
    good: Collection[int],
    keep: int,
    spared: Collection[int] = frozenset(),
    spoilt: Collection[int] = frozenset(),
) -> list[int]:
    """Return the steps to delete: those older than the `keep` newest good ones.

    A step is good if these processes have loaded and so verified it, or have written it; a step that earlier processes
    wrote does not count before it is loaded. While there are fewer than `keep` good ones, but at least one, the `keep`
    newest steps that are older than the good ones stay as well; steps before them are deleted, or a run that is cut
    short again and again would fill its disk. While there is none, no such step is deleted.

    Steps in `spoilt` have weights that are not finite, and do not count above, neither as good nor as older. Only the
    `keep` newest of them stay, and none that is older than `keep` good ones. Steps in `spared` are never deleted.
    Raises ValueError if `keep` is less than 1.
    """
    if keep < 1:
        raise ValueError(f"expected to keep at least 1 checkpoint, got {keep}")
    newest = sorted(set(good) & set(steps) - set(spoilt))[-keep:]
    older = sorted(step for step in steps if newest and step < newest[0])
    old = set(older if len(newest) == keep else [step for step in older if step not in spoilt][:-keep])
    old |= set(sorted(set(spoilt) & set(steps))[:-keep])
    return sorted(old.difference(spared))


def spared(disks: Sequence[Stock]) -> set[int]:
    """Return the steps whose checkpoints must not be deleted however old they are, if they are spread over disks.

    `disks` has for each disk its checkpoints, each with the names of the files that the disk has and of those that it
    lacks; for a single disk the result is empty. A checkpoint is complete if each of its files is on some disk, and
    safe if each is on two. The steps are at most three: the newest safe one, the newest complete one, and the oldest
    complete one that is newer than the newest safe one. The last is being copied to a second disk, and no copy would
    ever be finished if such a checkpoint were deleted each time.
    """
    whole = [step for step, count in _copies(disks).items() if count]
    if len(disks) < 2 or not whole:
        return set()
    safe = safest(disks)
    copied = [step for step in whole if safe is None or step > safe]
    return {step for step in (safe, max(whole), min(copied, default=None)) if step is not None}


def safest(disks: Sequence[Stock]) -> int | None:
    """Return the newest step of which each file is on two disks or more, so that it survives the loss of one; or None.

    `disks` gives each disk's files by save.
    """
    return max((step for step, count in _copies(disks).items() if count > 1), default=None)


def _copies(disks: Sequence[Stock]) -> dict[int, int]:
    """Return {step: on how many disks the rarest file of its checkpoint is}, which is 0 if a file is on no disk.

    `disks` gives each disk's files by save. A step that was repeated after a restart may have been saved several times;
    then the save with the most copies counts.
    """
    of_save: dict[Save, list[Parts]] = {}
    for stock in disks:
        for save, parts in stock.items():
            of_save.setdefault(save, []).append(parts)
    found: dict[int, int] = {}
    for save, held in of_save.items():
        there = Counter(name for parts in held for name in parts.here)
        least = min((there[name] for name in held[0].here | held[0].away), default=0)
        found[save.step] = max(least, found.get(save.step, 0))
    return found
