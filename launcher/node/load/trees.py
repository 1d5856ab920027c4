"""Read the processes of each rank and what they have used so far, from /proc.

On a machine with thousands of processes most belong to others: those are read only once a minute.
"""

import os
from collections.abc import Collection, Iterator
from typing import NamedTuple

from launcher.run.identity import stat_fields
from launcher.run.processes import io_counts, pids

_TICKS = os.sysconf("SC_CLK_TCK")
_PAGE = os.sysconf("SC_PAGE_SIZE")
_LOOKS = 12  # after so many everybody is looked at again: a number may have become a process of ours


class Process(NamedTuple):
    """The kernel's counters of one process; times and bytes include children that have ended."""

    pid: int
    parent: int
    started_s: float  # on the clock that runs since the machine was started
    cpu_s: float
    memory: int  # bytes resident


class TreeUse(NamedTuple):
    """What a process and all its descendants have used so far, and the memory that they hold now."""

    started_s: float
    cpu_s: float
    memory: int
    read: int
    written: int
    pids: frozenset[int]


class Trees:
    """A search for process trees that is repeated, and skips processes known to belong to none."""

    def __init__(self) -> None:
        self._strangers: set[int] = set()
        self._roots: set[int] = set()
        self._looks = 0

    def look(self, roots: Collection[int]) -> dict[int, TreeUse]:
        """Return the use of each process tree by the pid of its root; a root that has ended is left out."""
        if self._looks % _LOOKS == 0 or not self._roots.issuperset(roots):
            self._strangers = set()
        self._looks, self._roots = self._looks + 1, set(roots)
        there = set(pids())
        found = {pid: one for pid in (there - self._strangers) | self._roots if (one := read_process(pid)) is not None}
        children: dict[int, list[Process]] = {}
        for one in found.values():
            children.setdefault(one.parent, []).append(one)
        trees = {root: [found[root], *_below(root, children)] for root in roots if root in found}
        ours = {one.pid for tree in trees.values() for one in tree}
        self._strangers = (self._strangers & there) | (found.keys() - ours)
        return {root: _use(tree) for root, tree in trees.items()}


def read_process(pid: int) -> Process | None:
    """Return the counters of a process, or None if it has ended."""
    try:
        fields = stat_fields(pid)
    except OSError:
        return None
    ticks = sum(map(int, fields[11:15]))
    return Process(pid, int(fields[1]), int(fields[19]) / _TICKS, ticks / _TICKS, int(fields[21]) * _PAGE)


def _below(root: int, children: dict[int, list[Process]]) -> Iterator[Process]:
    """Yield the descendants of a process."""
    stack = [root]
    while stack:
        for one in children.get(stack.pop(), ()):
            yield one
            stack.append(one.pid)


def _use(tree: list[Process]) -> TreeUse:
    """Return the sum of what the processes of `tree` use."""
    moved = [_moved(one.pid) for one in tree]
    return TreeUse(
        started_s=tree[0].started_s,
        cpu_s=sum(one.cpu_s for one in tree),
        memory=sum(one.memory for one in tree),
        read=sum(read for read, _ in moved),
        written=sum(written for _, written in moved),
        pids=frozenset(one.pid for one in tree),
    )


def _moved(pid: int) -> tuple[int, int]:
    """Return (bytes read from disks, bytes written to disks) by the process; zeros if the kernel does not show them."""
    try:
        counts = io_counts(pid)
    except OSError:
        return 0, 0
    return counts[b"read_bytes"], counts[b"write_bytes"]
