"""Agree on the step from which a training goes on after a rank was replaced; pure functions.

A step is done once its update is in the weights. With whole replicas ranks are at most one step apart, since none can
finish a step before all have contributed their gradients; the most advanced weights count. The rank state that was lost
with a node comes from the rank that keeps a copy of it.

Where shards have copies, the newest step counts of which each shard is on some living rank, and ranks at another step
take their shard from there. If there is no such step, all go back to what was saved.

If a node is lost and not replaced, fewer ranks are left and may have other numbers. They go on as any start on so many
ranks would from a checkpoint of that step. Of lost ranks only their part of the step's losses is needed, from the rank
that keeps a copy.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from trainer.checkpoint_files.whole import whole


@dataclass(frozen=True, slots=True)
class Standing:
    """What one rank reports when the ranks meet again."""

    life: str  # of which start of the training its notes and its weights are
    step: int | None  # that its weights are of; None: it is new, or in the middle of an update
    notes: tuple[int, ...]  # the steps after which it knows what was its own
    kept: tuple[int, ...] = ()  # those after which it knows what was its charge's, a rank of another node
    shard: int | None = None  # which part of the parameters it has; None: all of them
    was: tuple[int, int] | None = None  # which rank it is in its notes, and of how many; None: it is new, or still is


@dataclass(frozen=True, slots=True)
class Agreement:
    """From where to go on; the same on all ranks."""

    step: int
    source: int  # a rank that has what is one for all
    takers: tuple[int, ...]  # those that need it
    lent: tuple[tuple[int, int], ...] = ()  # who has the note of it of a rank that has lost its own, and that rank
    handed: tuple[tuple[int, int], ...] = ()  # with copies of shards, who has that of a taker, and that taker
    resized: bool = False  # the step was done by other ranks, or by more of them


def keeper_of(rank: int, ranks_per_node: int) -> int | None:
    """Return the rank of the node before that keeps a copy of this rank's state, or None on the first node."""
    return rank - ranks_per_node if rank >= ranks_per_node else None


def agree(said: Sequence[Standing], ranks_per_node: int | None = None) -> Agreement | str:
    """Return the agreement, or why exact continuation is impossible; without `ranks_per_node` all are on one node."""
    if any(one.was is not None and one.was != (rank, len(said)) for rank, one in enumerate(said)):
        return _among_others(said, ranks_per_node or len(said))
    found = _newest(said)
    if isinstance(found, str):
        return found
    life, step, lent = said[found.source].life, found.step, []
    for rank, one in enumerate(said):
        if one.life == life and step in one.notes:
            continue
        keeper = keeper_of(rank, ranks_per_node or len(said))
        has_copy = keeper is not None and said[keeper].life == life and step in said[keeper].kept
        if keeper is not None and has_copy and (one.step is None or one.life == life):
            lent.append((keeper, rank))
        elif one.life not in ("", life):
            return f"what rank {rank} has noted is of another start of the training"
        elif one.life:
            return f"rank {rank} has not noted what was its own after step {step}"
        else:
            return f"what rank {rank} noted after step {step} is lost, and nobody has a copy"
    return replace(found, lent=tuple(lent))


def _among_others(said: Sequence[Standing], ranks_per_node: int) -> Agreement | str:
    """Agree where other ranks, or more of them, did the last step."""
    before = {(one.was[1], one.life) for one in said if one.was is not None}
    if len(before) > 1:
        return "some ranks had not met the others when one more was lost"
    if said[0].was is None or said[0].was[0] != 0:
        return "the first rank is new, and no other one has noted the buffers of the model"
    found = _newest(said)
    if isinstance(found, str):
        return found
    [(size, _)] = before
    there = {one.was[0]: one for one in said if one.was is not None}
    for rank in range(size):
        if rank in there and found.step not in there[rank].notes:
            return f"rank {rank} of {size} has not noted what was its own after step {found.step}"
        keeper = there.get(rank - ranks_per_node)
        if rank not in there and (keeper is None or found.step not in keeper.kept):
            return f"what rank {rank} of {size} noted after step {found.step} is lost, and nobody has a copy"
    return replace(found, resized=True)


def _newest(said: Sequence[Standing]) -> Agreement | str:
    """Return the newest step of which each part is on some rank, and who takes what from whom; or why there is none."""
    parts: list[Mapping[int | None, Sequence[int]]] = [
        {one.shard: () if one.step is None else (one.step,)} for one in said
    ]
    step = max(whole(parts), default=None)
    if step is None:
        return _why_none(said)
    has: dict[int | None, int] = {}
    for rank, one in enumerate(said):
        if one.step == step:
            has.setdefault(one.shard, rank)
        elif one.shard is None and one.step is not None and one.step < step - 1:
            return f"rank {rank} is at step {one.step}, while another one is at step {step}"
    takers = tuple(rank for rank, one in enumerate(said) if one.step != step)
    handed = tuple((has[said[rank].shard], rank) for rank in takers if said[rank].shard is not None)
    return Agreement(step, min(has.values()), takers, handed=handed)


def _why_none(said: Sequence[Standing]) -> str:
    steps = {one.step for one in said if one.step is not None}
    shards = {one.shard for one in said if one.shard is not None}
    lost = shards - {one.shard for one in said if one.step is not None}
    if lost:
        return f"no rank has shard {min(lost)} any more"
    if shards:
        return f"the shards that are left are of different steps: {', '.join(map(str, sorted(steps)))}"
    return "no rank has the weights"
