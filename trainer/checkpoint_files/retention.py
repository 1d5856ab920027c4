"""Which checkpoints may go. Pure."""

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple


class Save(NamedTuple):
    """A checkpoint, on whatever disks its files are."""

    step: int
    nonce: str


class Parts(NamedTuple):
    """The names of its files, by whether this disk has them."""

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
    """All that are older than the `keep` newest good ones. While there are fewer good ones than that, `keep` others
    that are older than these stay as well: a run that is cut short again and again would fill its disk else.

    Good is what was verified when it was loaded, or hashed as it was written: one that nobody has looked at since an
    earlier start does not count, and goes when enough good ones are newer than it. What is spared stays. Spoilt are
    those whose weights are not finite: they push no other one out, and of them alone the `keep` newest stay.
    """
    if keep < 1:
        raise ValueError(f"expected to keep at least 1 checkpoint, got {keep}")
    newest = sorted(set(good) & set(steps) - set(spoilt))[-keep:]
    older = sorted(step for step in steps if newest and step < newest[0])
    old = set(older if len(newest) == keep else [step for step in older if step not in spoilt][:-keep])
    old |= set(sorted(set(spoilt) & set(steps))[:-keep])
    return sorted(old.difference(spared))


def spared(disks: Sequence[Stock]) -> set[int]:
    """Of checkpoints whose files are spread over disks: those that stay, however old they are.

    The newest that survives the loss of any one disk, the newest that is whole, and the oldest whole one after the
    first of these: that one is getting its second copies, and were it to go as well, copies that take longer than
    others take to be written would never be done.
    """
    whole = [step for step, count in _copies(disks).items() if count]
    if len(disks) < 2 or not whole:
        return set()
    safe = safest(disks)
    copied = [step for step in whole if safe is None or step > safe]
    return {step for step in (safe, max(whole), min(copied, default=None)) if step is not None}


def safest(disks: Sequence[Stock]) -> int | None:
    """The newest step that survives the loss of any one disk."""
    return max((step for step, count in _copies(disks).items() if count > 1), default=None)


def _copies(disks: Sequence[Stock]) -> dict[int, int]:
    """By step: on how many disks that file of it is which the fewest have."""
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
