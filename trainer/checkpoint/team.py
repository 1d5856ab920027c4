"""The ranks that write one checkpoint together, who acts for which disk, and the words that they exchange meanwhile."""

import os
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
import torch.distributed as dist

from trainer.world import World

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Team:
    """Ranks with a gloo group of their own, which nothing else uses; a team of one has none."""

    group: dist.ProcessGroup | None
    ranks: tuple[int, ...]  # in the world
    me: int  # place among them
    leaders: tuple[int, ...] | None = None  # disks apart: the place of who acts for each one's; None: there is one disk

    @property
    def is_first(self) -> bool:
        return self.me == 0

    @property
    def apart(self) -> bool:
        """Whether the files of a checkpoint are spread over disks."""
        return self.leaders is not None

    @property
    def leader(self) -> int:
        """The place of who claims, commits and removes on this rank's disk."""
        return 0 if self.leaders is None else self.leaders[self.me]

    @property
    def leads(self) -> bool:
        return self.me == self.leader

    def near(self, place: int) -> bool:
        """Whether a rank writes on the same disk as this one."""
        return self.leaders is None or self.leaders[place] == self.leader

    def tell(self, word: T) -> T:
        """What the first one says."""
        if self.group is None:
            return word
        words: list[Any] = [word]
        dist.broadcast_object_list(words, src=self.ranks[0], group=self.group)
        said: T = words[0]
        return said

    def exchange(self, word: T) -> list[T]:
        """What each one says, to all."""
        if self.group is None:
            return [word]
        words: list[Any] = [None] * len(self.ranks)
        dist.all_gather_object(words, word, group=self.group)
        return words

    def greatest(self, *numbers: int) -> list[int]:
        """For each place, the greatest number that one of them brings."""
        if self.group is None:
            return list(numbers)
        votes = torch.tensor(numbers, dtype=torch.int64)
        dist.all_reduce(votes, dist.ReduceOp.MAX, group=self.group)
        return [int(vote) for vote in votes.tolist()]

    def send(self, view: memoryview) -> None:
        """Bytes to the first one, who receives them."""
        dist.send(torch.frombuffer(view, dtype=torch.uint8), dst=self.ranks[0], group=self.group)

    def receive(self, view: memoryview, place: int) -> None:
        """Bytes that the rank at this place sends."""
        dist.recv(torch.frombuffer(view, dtype=torch.uint8), src=self.ranks[place], group=self.group)


def nodes(world: World) -> list[str]:
    """The node of each rank; all ranks call it."""
    # Two nodes of a run may share a machine: its name alone would not tell them apart.
    here = f"{os.uname().nodename}/{os.environ.get('LAUNCH_NODE') or world.node}"
    if world.control is None:
        return [here]
    found: list[str] = [""] * world.size
    dist.all_gather_object(found, here, group=world.control)
    return found


def disk_leaders(world: World) -> tuple[int, ...]:
    """Where each node has a disk of its own: for each rank, the first one on its node. All ranks call it."""
    found = nodes(world)
    return tuple(found.index(node) for node in found)
