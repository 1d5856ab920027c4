"""Save each step's rank states (of one rank each) and snapshot (for all), to continue after it if a rank is killed.

rank states  this rank's own state (random draws, losses, buffers), in its node's memory, before its gradients are sent
copies       if a node may be lost: the states of a rank of another node, in this process
snapshot     the small shared state, in this process, after the update
"""

import logging
from dataclasses import dataclass, field
from pathlib import Path

from trainer.loop.loop import Loop
from trainer.loop.phases import Spent
from trainer.loop.sums import gathered
from trainer.recovery.agreement import RankReport
from trainer.recovery.copies import Copies
from trainer.recovery.rank_states import (
    GeneratorStates,
    RankState,
    RankStateFile,
    bytes_of,
    decoded,
    encoded,
    generator_states,
    numpy_draws,
    torch_state,
)
from trainer.recovery.replica import Snapshot
from trainer.recovery.shard_states import CannotHandOver, ShardState, Source
from trainer.wire import Launched
from trainer.world import World

log = logging.getLogger("trainer")
_OF_LOOP = ("steps", "samples", "left", "info", "logs", "gathers", "rates", "means")


@dataclass(slots=True)
class StepSnapshots:
    """The snapshots that one rank saves of its steps, kept while ranks reconnect in new process groups.

    `loads`: the strategy shards, so only snapshots and checkpoints may have a killed rank's state. `has_replica`:
    another rank has (with `loads`: may have) the same parameters. `made`: a function made the model and can make it
    again. `node_suffices`: the ranks of one node have all parameters between them. `rank_states` are this rank's own
    states, `copies` those that it keeps for a rank of another node. `snapshot` is of the last step. `part` has this
    rank's shards while its model is rebuilt, and `source` the tensors that they are taken from. `updating`: an
    optimizer update is under way. `drawn`: the random generators as last recorded. `old_place`: this rank and the
    number of ranks when its states were saved. `validated`: the last validation's step and values. `verified`: steps of
    checkpoints that were verified, and whether their weights are finite. `resized`: the ranks after the step are not
    those before it.
    """

    launched: Launched
    loads: bool  # only snapshots and checkpoints may have the state of a killed rank
    has_replica: bool  # another rank has the same parameters; with `loads`: it may have them
    made: bool  # a function made the model, and can make it again
    node_suffices: bool  # the ranks of a node have all of the parameters between them
    rank_states: RankStateFile | None = None
    copies: Copies | None = None  # of the states of a rank of another node; None: this rank keeps none
    snapshot: Snapshot | None = None  # of the last step
    source: Source | None = None  # with hsdp: the tensors that `part` is taken from
    part: ShardState | None = None  # this rank's shards, while its model is rebuilt
    updating: bool = False  # an update is under way, so that the weights are of no step
    drawn: GeneratorStates | None = None  # this rank's random generators as last recorded
    old_place: tuple[int, int] | None = None  # this rank and the number of ranks when its states were saved
    validated: tuple[int, dict[str, float]] = (-1, {})  # the step of the last validation, and what it found
    verified: dict[int, bool] = field(default_factory=dict)  # checkpoints that this process has verified, or written
    resized: bool = False  # the ranks after the step are not those before it

    def begin(self, loop: Loop) -> None:
        """Start new files for the states of this rank alone, after removing those of its earlier processes.

        Raises OSError if launch gave no folder, or earlier files cannot be removed.
        """
        numpy_draws.forget()  # what was loaded has put its state back
        self.snapshot = None
        self.drop_rank_states()
        self.rank_states = RankStateFile.begin(self._path(loop.training.world), self._start_name())
        self.old_place = loop.training.world.rank, loop.training.world.size
        self._record_source(loop)

    def drop_rank_states(self) -> None:
        """Remove the files with the states of this rank alone."""
        if self.rank_states is not None:
            self.rank_states.remove()
        self.rank_states = None

    @property
    def resizes(self) -> bool:
        """Whether another number of ranks may continue after a kill, without loading a saved state.

        This needs three things: launch allows another number of ranks and each node has all parameters (`may_resize` is
        True only if both hold), and another rank has the same parameters as this one.
        """
        return self.may_resize and self.has_replica

    @property
    def may_resize(self) -> bool:
        """Whether launch allows another number of ranks to continue after a kill, and each node has all parameters.

        It is False unless the user asked for recovery in place, as a script may have used the number of ranks itself.
        """
        return self.launched.rank_states_copied and self.node_suffices and not self.launched.in_place_by_default

    @property
    def goes_back(self) -> bool:
        """Whether all ranks have to load a saved state after a kill, as no other rank has the shards of the killed one.

        The state is a checkpoint's or snapshot's. As all load it anyway, fewer ranks than before can continue too.
        """
        return self.loads and not self.has_replica  # it stays only once something was

    def find(self, loop: Loop) -> None:
        """Open the rank states that were left in the node's memory by the killed rank that this one replaces.

        Does nothing if this rank already has states. `rank_states` stays None if none were left, or if they are of
        several launches of the ranks. Raises OSError if launch gave no folder.
        """
        path = self._path(loop.training.world)
        if self.rank_states is None:
            self.rank_states = RankStateFile.from_files(path)

    @property
    def copies_rank_states(self) -> bool:
        """Whether this rank's states are copied to another node, so that they survive the loss of its node."""
        return self.launched.rank_states_copied and self.has_replica

    def save_rank_state(self, loop: Loop, step: int, *, known: bool) -> bool:
        """Save this rank's own state after step `step`; return False if there is no memory for it, else True.

        It is the random generators, the losses summed since the last log and, if they are this rank's own, the buffers.
        If the state is copied to another node, the transfer begins. With `known` False this rank has no valid state:
        nothing is saved, the rank that keeps its copies receives an empty one, and True is returned.
        """
        data, fits = b"", True
        if self.rank_states is not None and known:
            names, losses = loop.losses.noted() if loop.gathers else ((), [])
            self.drawn = generator_states()
            buffers = bytes_of(loop.strategy.buffers) if _has_buffers(loop) else b""
            data = encoded(RankState(step, self.drawn, names, losses, buffers))
            fits = self.rank_states.write(step, data)
        if self.copies is not None:
            self.copies.exchange(step, data)
        return fits

    def await_copies(self) -> None:
        """Wait until this rank's state is sent to the rank that copies it, and the state that this rank copies is here.

        Returns at once if states are not copied. Raises RuntimeError if the rank that receives this one's state, or the
        one that sends its own, is gone.
        """
        if self.copies is not None:
            self.copies.finish()

    def copy_in_new_groups(self, loop: Loop, step: int) -> None:
        """Send this rank's state of `step` again to the rank on another node that keeps its copies.

        It is sent in the process groups of `loop`. Waits until it is sent and the copy that this rank keeps is here;
        does nothing if states are not copied. All ranks call it once new groups are made. Raises RuntimeError if a rank
        with which this one exchanges copies is gone.
        """
        if not self.copies_rank_states:
            return
        world = loop.training.world
        if self.copies is None:
            self.copies = Copies(world)
        else:
            self.copies.rejoin(world)
        save_rank_state = self.rank_states.read(step) if self.rank_states is not None else None
        self.copies.exchange(step, b"" if save_rank_state is None else encoded(save_rank_state))
        self.await_copies()

    def keep_copied_state(self, loop: Loop, start: str, step: int, data: bytes) -> bool:
        """Save `data`, this rank's state of `step`, which was lost with a node and came from the rank with a copy.

        `start` names the start of the ranks in which the state was saved, such as `a0001.g0002`; `loop` gives this
        rank's number. Returns False if there is no memory for it. Raises OSError if launch gave no folder, or earlier
        files cannot be removed.
        """
        self.rank_states = RankStateFile.begin(self._path(loop.training.world), start)
        return self.rank_states.write(step, data)

    def save_resized_state(self, loop: Loop, step: int) -> bool:
        """Save this rank's state of `step` again, under its new rank number, after the number of ranks has changed.

        The losses that ranks which are gone had in this step are saved with it, from copies on other nodes, so all
        ranks call it. Returns False if there is no memory for it. Raises OSError if launch gave no folder, or earlier
        files cannot be removed.
        """
        world, before = loop.training.world, self.rank_states
        own = before.read(step) if before is not None and self.old_place is not None else None
        own_losses = None if own is None else (own.names, own.others)
        gathered_states = gathered((self.old_place, self._copied_losses(step), own_losses), world)
        names, others = next(own_losses for *_, own_losses in gathered_states if own_losses is not None)
        there = {old_place for old_place, *_ in gathered_states}
        gone = [
            losses
            for old_place, kept, _ in gathered_states
            for rank, losses in kept.items()
            if (rank, old_place[1]) not in there
        ]
        mine = own or RankState(step, generator_states())  # a new rank took no part in the step
        save_rank_state = RankState(step, mine.drawn, names, mine.losses, mine.buffers, [*others, *gone], resized=True)
        self.rank_states = RankStateFile.begin(self._path(world), self._start_name())
        self.old_place, self.copies = (world.rank, world.size), None
        if before is not None and before.path != self.rank_states.path:
            before.remove()
        return self.rank_states.write(step, encoded(save_rank_state))

    def _copied_losses(self, step: int) -> dict[int, list[float]]:
        """Return {rank: its losses} from the copy that this rank keeps of another node's rank after that step.

        The key is the number that the other rank had then. The losses are a flat list, as `StepLosses.noted` returns
        it: sum and count of each loss of each micro-batch. The dict is empty if this rank keeps no copy of that step.
        """
        if self.old_place is None or self.copies is None or step not in self.copies.kept:
            return {}
        return {self.old_place[0] + self.copies.world.local_size: decoded(self.copies.kept[step]).losses}

    def has_drawn(self) -> bool:
        """Return whether torch has drawn random numbers since this rank's state was last saved; False if none is."""
        return self.drawn is not None and (self.drawn.torch, self.drawn.gpu) != torch_state()

    def take_snapshot(self, loop: Loop, step_samples: int | None, spent: Spent | None = None) -> None:
        """Copy in memory, in place of the last snapshot, the small state that all ranks share, such as counters.

        Call it after an update, or before the first step. `step_samples` is the number of samples of the step over all
        ranks, None before the first step. `spent` is the time since the last line of metrics; None: it is read from the
        loop's stopwatch.
        """
        values = {name: getattr(loop, name) for name in _OF_LOOP}
        norm = float(loop.norm) if loop.norm is not None and loop.logs else None  # else nobody looks at it
        values |= {"norm": norm, "step_samples": step_samples, "spent": spent or loop.phases.so_far()}
        step, subjects = loop.progress.step, loop.checkpointer.subjects
        self.snapshot = Snapshot.of(step, subjects.shared, subjects.optimizers, values)

    def continue_from(self, loop: Loop, step_samples: int | None) -> None:
        """Record the loop's present state as that of the last step, from which training continues.

        States that were saved before ranks reconnected are dropped. `step_samples` is the number of samples of that
        step, None before the first step.
        """
        self.drawn = self.part = None
        self._record_source(loop)
        self.old_place = loop.training.world.rank, loop.training.world.size
        self.take_snapshot(loop, step_samples, loop.spent)

    def _record_source(self, loop: Loop) -> None:
        """Set `source` to the tensors of this rank's shards, not copies, if another rank has the same shards.

        Call it between two steps. Once ranks reconnect, `keep_part` takes the shards from `source`, to send them to a
        rank that has lost the same ones.
        """
        if self.loads and self.has_replica:
            self.source = Source.of(loop.checkpointer.subjects)

    def keep_part(self) -> None:
        """Set `part` to this rank's shards, just before its model is rebuilt without them.

        They are then put into the new model, or sent to another rank; they are not copied. `part` becomes None if an
        update is under way or the shards cannot be sent. Sets `source`, the tensors that the shards are taken from, to
        None, so that the rest of the old model is freed.
        """
        self.part = None
        if not self.updating and self.snapshot is not None and self.source is not None:
            try:
                self.part = self.source.part(self.snapshot)
            except CannotHandOver as error:
                log.warning("this rank's shards cannot be sent to another rank: %s", error)
        self.source = None  # else all of the model would be kept

    def report(self, loop: Loop) -> RankReport:
        """Return the steps of which this rank has state; reconnected ranks agree on a step by these reports."""
        start, rank_states = (
            (self.rank_states.start, self.rank_states.steps()) if self.rank_states is not None else ("", ())
        )
        kept = tuple(self.copies.kept) if self.copies is not None else ()
        if self.loads:
            step = None if self.part is None else self.part.step
            return RankReport(
                start, step, rank_states, copy_steps=kept, shard=loop.strategy.shard, old_place=self.old_place
            )
        step = None if self.snapshot is None or self.updating else self.snapshot.step
        return RankReport(start, step, rank_states, copy_steps=kept, old_place=self.old_place)

    def _start_name(self) -> str:
        """Return the name of this start of the ranks in the names of state files, such as `a0001.g0002`.

        That is the second start (generation) in the run's first attempt.
        """
        return f"a{self.launched.attempt:04d}.g{self.launched.generation:04d}"

    def _path(self, world: World) -> Path:
        """Return the path to which a suffix is added for each of this rank's state files. `world` tells the rank.

        Raises OSError if launch gave no folder.
        """
        if self.launched.rank_state_dir is None:
            raise OSError("launch gives no folder in memory")
        return self.launched.rank_state_dir / f"rank-{world.rank:05d}"


def _has_buffers(loop: Loop) -> bool:
    """Return whether this rank's buffers are part of its state.

    They are with a strategy that shards; if every rank has the whole model, only rank 0's are.
    """
    return loop.training.world.is_first or loop.strategy.is_sharded
