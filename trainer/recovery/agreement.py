"""Agree on the step from which a training continues after a rank was replaced; pure functions.

A step is done once its update is in the weights. With whole replicas ranks are at most one step apart, since none can
finish a step before all have contributed their gradients; the most advanced weights count. The rank state that was lost
with a node comes from the rank that keeps a copy of it.

If shards have copies, the newest step counts of which each shard is on some living rank, and ranks at another step take
their shard from there. If there is no such step, all load the newest snapshot or checkpoint.

If a node is lost and not replaced, fewer ranks are left and may have other numbers. They continue as any start on so
many ranks would from a checkpoint of that step. Of lost ranks only their part of the step's losses is needed, from the
rank that keeps a copy.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from trainer.checkpoint_files.complete_steps import whole


@dataclass(frozen=True, slots=True)
class RankReport:
    """The report of one rank when ranks have connected anew: the step of its weights, its shard and its saved states.

    `start` names the launch of the ranks (attempt and generation) in which its states were saved. `step` is None if the
    rank is new or in the middle of an update. `state_steps` are the steps whose own state it has saved, `copy_steps`
    those whose state it keeps for a rank on the next node. `shard` is the number of its part of the parameters (None:
    all). `old_place` is its rank and the number of ranks when its states were saved (None: it has none).
    """

    start: str  # names the launch of the ranks in which its states were saved
    step: int | None  # after which its weights are; None: the rank is new, or in the middle of an update
    state_steps: tuple[int, ...]  # the steps whose state of its own the rank has saved
    copy_steps: tuple[int, ...] = ()  # the steps whose state it has for the rank on the next node that sends it copies
    shard: int | None = None  # which part of the parameters it has; None: all of them
    old_place: tuple[int, int] | None = None  # rank and number of ranks when its states were saved; None: it has none


@dataclass(frozen=True, slots=True)
class Agreement:
    """The step to continue from and who sends what to whom, the same on all ranks. The training continues after `step`.

    `source` sends the state that is the same for all, and `receivers` lack the weights after `step`. `copies_sent` has
    pairs (sender, receiver): the rank with a copy of a rank's own state, and the rank that lost that state;
    `shards_sent` has such pairs for shards. `resized`: the number of ranks, or a rank's number, has changed since.
    """

    step: int
    source: int  # the rank that sends the state that is the same for all
    receivers: tuple[int, ...]  # the ranks that lack the weights after `step`
    copies_sent: tuple[
        tuple[int, int], ...
    ] = ()  # the rank with a copy of a lost rank state, and the rank that lost it
    shards_sent: tuple[tuple[int, int], ...] = ()  # with copies of shards, the sender and the receiver of a shard
    resized: bool = False  # the number of ranks, or a rank's number, has changed since the step


def holder_of(rank: int, ranks_per_node: int) -> int | None:
    """Return the rank, on the previous node, that keeps a copy of this rank's state; None on the first node.

    All nodes have `ranks_per_node` ranks.
    """
    return rank - ranks_per_node if rank >= ranks_per_node else None


def agree(reports: Sequence[RankReport], ranks_per_node: int | None = None) -> Agreement | str:
    """Return the step to continue from and which ranks send what to which, the same on all ranks.

    If exact continuation is impossible, return the reason as text. `reports` are those of all ranks, in their order.
    The copy of a rank's state is on the node before its own, which is found by `ranks_per_node` (None: all ranks are on
    one node, and there are no copies).
    """
    if any(one.old_place is not None and one.old_place != (rank, len(reports)) for rank, one in enumerate(reports)):
        return _agree_resized(reports, ranks_per_node or len(reports))
    found = _newest(reports)
    if isinstance(found, str):
        return found
    start, step, copies_sent = reports[found.source].start, found.step, []
    for rank, one in enumerate(reports):
        if one.start == start and step in one.state_steps:
            continue
        holder = holder_of(rank, ranks_per_node or len(reports))
        has_copy = holder is not None and reports[holder].start == start and step in reports[holder].copy_steps
        if holder is not None and has_copy and (one.step is None or one.start == start):
            copies_sent.append((holder, rank))
        elif one.start not in ("", start):
            return f"the saved state of rank {rank} is of another start of the training"
        elif one.start:
            return f"rank {rank} has not saved its own state after step {step}"
        else:
            return f"the state of rank {rank} after step {step} is lost, and no rank has a copy"
    return replace(found, copies_sent=tuple(copies_sent))


def _agree_resized(reports: Sequence[RankReport], ranks_per_node: int) -> Agreement | str:
    """Return from which step the ranks continue and which of them send what to which, or as text why they cannot.

    The number of ranks has changed since the last step. `reports` are those of all present ranks, in their order.
    `ranks_per_node`, which has not changed, tells which rank keeps the copy of a lost rank's state.
    """
    before = {(one.old_place[1], one.start) for one in reports if one.old_place is not None}
    if len(before) > 1:
        return "some ranks had not met the others when one more was lost"
    if reports[0].old_place is None or reports[0].old_place[0] != 0:
        return "rank 0 is new, and no other rank has saved the model's buffers"
    found = _newest(reports)
    if isinstance(found, str):
        return found
    [(size, _)] = before
    there = {one.old_place[0]: one for one in reports if one.old_place is not None}
    for rank in range(size):
        if rank in there and found.step not in there[rank].state_steps:
            return f"rank {rank} of {size} has not saved its own state after step {found.step}"
        holder = there.get(rank - ranks_per_node)
        if rank not in there and (holder is None or found.step not in holder.copy_steps):
            return f"the state of rank {rank} of {size} after step {found.step} is lost, and no rank has a copy"
    return replace(found, resized=True)


def _newest(reports: Sequence[RankReport]) -> Agreement | str:
    """Return the agreement on the newest step of which every shard, or the whole model, is on some rank.

    Returns as text why there is none. There is none either if a rank with a whole model is more than one step behind.
    """
    parts: list[Mapping[int | None, Sequence[int]]] = [
        {one.shard: () if one.step is None else (one.step,)} for one in reports
    ]
    step = max(whole(parts), default=None)
    if step is None:
        return _why_no_step(reports)
    has: dict[int | None, int] = {}
    for rank, one in enumerate(reports):
        if one.step == step:
            has.setdefault(one.shard, rank)
        elif one.shard is None and one.step is not None and one.step < step - 1:
            return f"rank {rank} is at step {one.step}, while another one is at step {step}"
    receivers = tuple(rank for rank, one in enumerate(reports) if one.step != step)
    shards_sent = tuple((has[reports[rank].shard], rank) for rank in receivers if reports[rank].shard is not None)
    return Agreement(step, min(has.values()), receivers, shards_sent=shards_sent)


def _why_no_step(reports: Sequence[RankReport]) -> str:
    """Return as text why there is no step of which the surviving ranks have every shard."""
    steps = {one.step for one in reports if one.step is not None}
    shards = {one.shard for one in reports if one.shard is not None}
    lost = shards - {one.shard for one in reports if one.step is not None}
    if lost:
        return f"no rank has shard {min(lost)} any more"
    if shards:
        return f"the shards that are left are of different steps: {', '.join(map(str, sorted(steps)))}"
    return "no rank has the weights"
