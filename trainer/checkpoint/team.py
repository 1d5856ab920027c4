"""The ranks that write one checkpoint together, and the few words that they exchange meanwhile."""

from dataclasses import dataclass
from typing import Any, TypeVar

import torch
import torch.distributed as dist

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Team:
    """Ranks with a gloo group of their own, which nothing else uses; a team of one has none."""

    group: dist.ProcessGroup | None
    ranks: tuple[int, ...]  # in the world
    me: int  # place among them

    @property
    def is_first(self) -> bool:
        return self.me == 0

    def tell(self, word: T) -> T:
        """What the first one says."""
        if self.group is None:
            return word
        words: list[Any] = [word]
        dist.broadcast_object_list(words, src=self.ranks[0], group=self.group)
        said: T = words[0]
        return said

    def collect(self, word: T) -> list[T]:
        """What each one says, to the first one; the others get an empty list."""
        if self.group is None:
            return [word]
        words: list[Any] | None = [None] * len(self.ranks) if self.is_first else None
        dist.gather_object(word, words, dst=self.ranks[0], group=self.group)
        return words or []

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
