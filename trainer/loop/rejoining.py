"""Bring ranks that have reconnected after a rank was killed to the step from which they continue.

reports of all ranks ─► agree on a step ─► rank states from copies ─► weights, optimizer: sent in stripes, or restored
                    ─► buffers, generators, the step's losses ─► all are right after that step's update
"""

from typing import Any

import torch
import torch.distributed as dist

from trainer.checkpoint.generators import seed_all
from trainer.loop.loop import Loop
from trainer.loop.step_snapshots import StepSnapshots
from trainer.loop.sums import gathered
from trainer.recovery.agreement import Agreement, agree
from trainer.recovery.rank_states import RankState, put_bytes, restore_generator_states
from trainer.recovery.replica import Replica, ReplicaReader
from trainer.recovery.shard_states import ShardState
from trainer.strategies.replicas import unsaved_buffers

CANNOT = "the training cannot continue in place: "  # begins an error after which reconnecting once more would not help


def cannot(why: str) -> dist.DistBackendError:
    """Return the error to raise if ranks cannot continue in place, because of `why`; launch then restarts all."""
    return dist.DistBackendError(CANNOT + why)


def arrive(loop: Loop, snapshots: StepSnapshots) -> tuple[int, int | None] | str:
    """Bring all ranks, in new process groups, to the step from which the training continues; all ranks call it.

    `snapshots` has this rank's saved states. Returns the step and its number of samples (None: before the first step),
    or, as text, why all ranks have to load a checkpoint or snapshot. Raises DistBackendError if a state is gone or does
    not fit in memory.
    """
    world = loop.training.world
    snapshots.find(loop)
    reports = gathered(snapshots.report(loop), world)
    agreed = agree(reports, world.local_size)
    if isinstance(agreed, str):
        snapshots.part = None
        return agreed
    snapshots.has_replica = True
    if not agreed.resized:
        _send_copied_states(loop, snapshots, agreed, reports[agreed.source].start)
    elif not snapshots.save_resized_state(loop, agreed.step):
        raise cannot("the saved states of ranks do not fit in memory")
    snapshots.copy_in_new_groups(loop, agreed.step)
    loop.checkpointer.continue_from(agreed.step)
    values = (_with_part if snapshots.loads else _with_weights)(loop, snapshots, agreed)
    _put_back(loop, snapshots, agreed.step, values)
    step_samples: int | None = values["step_samples"]
    who = ", ".join(map(str, agreed.receivers))
    copied = f"; state copied to rank{'s' if len(agreed.receivers) > 1 else ''} {who}" if who else ""
    step = f"step {agreed.step}" + (f" on {world.size} rank{'s' if world.size > 1 else ''}" if agreed.resized else "")
    loop.training.say(f"continues in place after {step}{copied}")
    return agreed.step, step_samples


def _with_weights(loop: Loop, snapshots: StepSnapshots, agreed: Agreement) -> dict[str, Any]:
    """Bring each rank's whole model to the agreed step: ranks that lack it receive it, others restore a snapshot.

    Returns the values of the Loop's fields as of that step, by field name. All ranks call it; it is for strategies in
    which each rank has the whole model. Raises DistBackendError if this rank has no snapshot.
    """
    world, subjects = loop.training.world, loop.checkpointer.subjects
    if world.rank in agreed.receivers:
        snapshots.snapshot = None  # until it has all of it
        values = ReplicaReader(agreed, subjects, world).take()
    else:
        snapshot = snapshots.snapshot
        if snapshot is None:
            raise cannot(f"this rank has no snapshot of step {agreed.step}")
        if agreed.receivers:
            Replica(subjects, snapshot).give(agreed, world)
        snapshot.put_back(subjects)
        values = dict(snapshot.loop)
    for buffer in unsaved_buffers(loop.strategy.module):  # the new rank may have made others
        value = buffer.detach().cpu().contiguous()
        dist.broadcast(value, src=agreed.source, group=world.control)
        buffer.copy_(value)
    return values


def _with_part(loop: Loop, snapshots: StepSnapshots, agreed: Agreement) -> dict[str, Any]:
    """Restore this rank's shards as of the agreed step in the rebuilt model, from its own memory or another rank's.

    Returns the values of the Loop's fields as of that step, by field name. All ranks call it. Raises DistBackendError
    if the shards are not of that step.
    """
    world = loop.training.world
    for sender in dict.fromkeys(one for one, _ in agreed.shards_sent):
        receivers = [rank for one, rank in agreed.shards_sent if one == sender]
        if world.rank == sender and snapshots.part is not None:
            snapshots.part.give(receivers, world)
        elif world.rank in receivers:
            snapshots.part = ShardState.take(sender, world)
    part = snapshots.part
    if part is None or part.step != agreed.step:
        raise cannot(f"this rank has no shards of step {agreed.step}")
    part.put_back(loop.checkpointer.subjects)
    return dict(part.snapshot.loop)


def _send_copied_states(loop: Loop, snapshots: StepSnapshots, agreed: Agreement, start: str) -> None:
    """Send each state that was lost with a node from the rank that keeps a copy to the rank it belongs to.

    All ranks call it. `agreed` has the step, and for each lost state these two ranks. `start` names the start of the
    ranks in which the state was saved, such as `a0001.g0002`: the second start of the ranks in the run's first attempt.
    Raises DistBackendError if there is no memory for a state.
    """
    world = loop.training.world
    for holder, rank in agreed.copies_sent:
        if world.rank == holder and snapshots.copies is not None:
            dist.send_object_list([snapshots.copies.kept[agreed.step]], dst=rank, group=world.control)
        elif world.rank == rank:
            received: list[Any] = [None]
            dist.recv_object_list(received, src=holder, group=world.control)
            if not snapshots.keep_copied_state(loop, start, agreed.step, received[0]):
                raise cannot(f"there is no memory for the state of step {agreed.step}")


def _put_back(loop: Loop, snapshots: StepSnapshots, step: int, values: dict[str, Any]) -> None:
    """Set the Loop's fields to `values`, by field name, and restore this rank's own state of `step` from `snapshots`.

    The own state is its buffers, summed losses and random generators. All ranks call it. Raises DistBackendError if the
    state is gone.
    """
    state = snapshots.rank_states.read(step) if snapshots.rank_states is not None else None
    if state is None:
        raise cannot(f"the saved state of step {step} is gone")
    _put_buffers_back(loop, state)
    for name, value in values.items():
        if name not in ("norm", "step_samples"):
            setattr(loop, name, value)
    loop.norm = None if values["norm"] is None else torch.tensor(values["norm"], dtype=torch.float64)
    _put_back_losses(loop, state)
    restore_generator_states(state.drawn)
    snapshots.resized = state.resized
    if state.resized:  # batches of a validation are cut by the number of ranks: what it has found stays
        found = gathered(snapshots.validated, loop.training.world)
        loop.validated = next((one for one in found if one[0] == state.step), loop.validated)


def _put_buffers_back(loop: Loop, state: RankState) -> None:
    """Restore the model's buffers from `state`, or from rank 0's state if all ranks have the same buffers.

    All ranks call it, as rank 0 then broadcasts. Each rank has buffers of its own if the model is sharded and the ranks
    are as many as before.
    """
    buffers = loop.strategy.buffers
    if not buffers or (loop.strategy.is_sharded and not state.resized):  # each rank has kept its own
        put_bytes(state.buffers, buffers)
        return
    flat = torch.frombuffer(bytearray(state.buffers or bytes(sum(one.nbytes for one in buffers))), dtype=torch.uint8)
    dist.broadcast(flat, src=0, group=loop.training.world.control)
    put_bytes(flat.numpy().tobytes(), buffers)


def _put_back_losses(loop: Loop, state: RankState) -> None:
    """Restore the losses that this rank had summed in the step of its saved state."""
    if state.names:
        loop.losses.put_back(state.names, state.losses, state.others)


def reseed_generators(loop: Loop) -> None:
    """Seed the random generators from the setting `seed`, this rank's number and the step.

    This is for a step after which other ranks train than before. Loading a checkpoint that another number of ranks
    saved does the same, as the saved generators do not fit the ranks.
    """
    world, step = loop.training.world, loop.progress.step
    seed_all(loop.training.settings.seed, world.dp_rank)
    if step:
        seed_all(torch.initial_seed(), world.rank, step)
