"""From where a training goes on after a rank was replaced. Pure.

A step is done where its update is in the weights. Ranks of a training with whole replicas are at most one step apart:
nobody can finish a step before all have given their gradients to it. The most advanced weights count.
"""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Standing:
    """What one rank says when the ranks meet again."""

    life: str  # of which start of the training its notes and its weights are
    step: int | None  # that its weights are of; None: it is new, and has none
    notes: tuple[int, ...]  # the steps after which it knows what was its own


@dataclass(frozen=True, slots=True)
class Agreement:
    """The same on all ranks."""

    step: int
    source: int  # a rank that has the weights of it
    takers: tuple[int, ...]  # those that need them


def agree(said: Sequence[Standing]) -> Agreement | str:
    """By rank; or why there is no way to go on exactly."""
    known = [(one.step, rank) for rank, one in enumerate(said) if one.step is not None]
    if not known:
        return "no rank has the weights"
    step = max(one for one, _ in known)
    source = min(rank for one, rank in known if one == step)
    life = said[source].life
    for rank, one in enumerate(said):
        if one.life != life:
            return f"what rank {rank} has noted is of another start of the training"
        if one.step is not None and one.step < step - 1:
            return f"rank {rank} is at step {one.step}, while rank {source} is at step {step}"
        if step not in one.notes:
            return f"rank {rank} has not noted what was its own after step {step}"
    return Agreement(step, source, tuple(rank for rank, one in enumerate(said) if one.step != step))
