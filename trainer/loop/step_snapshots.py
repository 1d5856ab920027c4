"""Keep what a rank needs of each step, so that the training can continue right after it when a rank was killed.

rank states  what is this rank's alone, in its node's memory, before its gradients are sent
copies       where a node may be lost: the states of a rank of another node, in this process
snapshot     the small shared state, in this process, after the update
"""

import logging
from dataclasses import dataclass, field
from pathlib import Path

from trainer.loop.loop import Loop
from trainer.loop.phases import Spent
from trainer.loop.sums import gathered
from trainer.recovery.agreement import Standing
from trainer.recovery.copies import Copies
from trainer.recovery.rank_states import (
    Drawn,
    RankState,
    RankStateFile,
    bytes_of,
    decoded,
    drawn_now,
    encoded,
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
    """What one rank keeps of its steps, over all groups in which it meets the others."""

    launched: Launched
    loads: bool  # the state of a rank that was killed may be kept by snapshots and checkpoints alone
    hands_over: bool  # another rank has it too; with `loads` as well: another rank may have it
    made: bool  # the model was, by a function: it can be made anew
    suffices: bool  # the ranks of a node have all of the parameters between them
    notes: RankStateFile | None = None
    copies: Copies | None = None  # of what the ranks of another node note, where a spare may take its place
    snapshot: Snapshot | None = None  # of the last step
    source: Source | None = None  # with hsdp: what its part can be taken from
    part: ShardState | None = None
    updating: bool = False  # the weights are of no step
    drawn: Drawn | None = None  # what was noted last of this rank's random generators
    was: tuple[int, int] | None = None  # which rank, and of how many, it is in its notes
    validated: tuple[int, dict[str, float]] = (-1, {})  # the step of the last validation, and what it found
    verified: dict[int, bool] = field(default_factory=dict)  # checkpoints that this process has verified, or written
    resized: bool = False  # the end of the step after which it goes on is for other ranks than its beginning was

    def begin(self, loop: Loop) -> None:
        """Begin to keep rank states. Raises OSError."""
        numpy_draws.forget()  # what was loaded has put its state back
        self.snapshot = None
        self.let_go()
        self.notes = RankStateFile.begin(self._path(loop.training.world), self._life())
        self.was = loop.training.world.rank, loop.training.world.size
        self._know_source(loop)

    def let_go(self) -> None:
        """Remove the rank states kept so far."""
        if self.notes is not None:
            self.notes.remove()
        self.notes = None

    @property
    def resizes(self) -> bool:
        """Whether this rank's state is enough for fewer or more ranks, which are allowed."""
        return self.may_resize and self.hands_over

    @property
    def may_resize(self) -> bool:
        """Whether the ranks of a node have enough state for another number of ranks.

        Only where it was asked for, as a script may have used the number of ranks.
        """
        return self.launched.notes_copied and self.suffices and not self.launched.in_place_unasked

    @property
    def goes_back(self) -> bool:
        """Whether all load what was saved, which fewer ranks can do too."""
        return self.loads and not self.hands_over  # it stays only once something was

    def find(self, loop: Loop) -> None:
        """Find the states that the rank whose place is taken has left in this node's memory."""
        path = self._path(loop.training.world)
        if self.notes is None:
            self.notes = RankStateFile.found(path)

    @property
    def copies_notes(self) -> bool:
        """Whether rank states are copied to other nodes, being all that a node's loss would lose."""
        return self.launched.notes_copied and self.hands_over

    def note(self, loop: Loop, step: int, *, known: bool) -> bool:
        """Keep this rank's own state after that step; return False if there is no memory for it.

        With `known` False there is nothing to keep any more, and the rank with the copy is told so.
        """
        data, fits = b"", True
        if self.notes is not None and known:
            names, losses = loop.losses.noted() if loop.gathers else ((), [])
            self.drawn = drawn_now()
            buffers = bytes_of(loop.strategy.buffers) if _has_buffers(loop) else b""
            data = encoded(RankState(step, self.drawn, names, losses, buffers))
            fits = self.notes.write(step, data)
        if self.copies is not None:
            self.copies.exchange(step, data)
        return fits

    def copied(self) -> None:
        """Wait until the copies of this step have arrived, before any rank can finish it."""
        if self.copies is not None:
            self.copies.finish()

    def copy_anew(self, loop: Loop, step: int) -> None:
        """Copy the step's state in new groups, whose keepers may be new too."""
        if not self.copies_notes:
            return
        world = loop.training.world
        if self.copies is None:
            self.copies = Copies(world)
        else:
            self.copies.meet_anew(world)
        note = self.notes.read(step) if self.notes is not None else None
        self.copies.exchange(step, b"" if note is None else encoded(note))
        self.copied()

    def take_note(self, loop: Loop, life: str, step: int, data: bytes) -> bool:
        """Keep a state that was lost with its node and came from the rank that had a copy.

        Returns False if there is no memory for it. Raises OSError.
        """
        self.notes = RankStateFile.begin(self._path(loop.training.world), life)
        return self.notes.write(step, data)

    def note_anew(self, loop: Loop, step: int) -> bool:
        """Keep the step's state as one of another set of ranks, with the losses of those that are gone.

        Returns False if there is no memory for it. Raises OSError.
        """
        world, before = loop.training.world, self.notes
        own = before.read(step) if before is not None and self.was is not None else None
        told = None if own is None else (own.names, own.others)
        said = gathered((self.was, self._losses_kept(step), told), world)
        names, others = next(told for *_, told in said if told is not None)
        there = {was for was, *_ in said}
        gone = [losses for was, kept, _ in said for rank, losses in kept.items() if (rank, was[1]) not in there]
        mine = own or RankState(step, drawn_now())  # who is new took no part in the step
        note = RankState(step, mine.drawn, names, mine.losses, mine.buffers, [*others, *gone], resized=True)
        self.notes = RankStateFile.begin(self._path(world), self._life())
        self.was, self.copies = (world.rank, world.size), None
        if before is not None and before.path != self.notes.path:
            before.remove()
        return self.notes.write(step, encoded(note))

    def _losses_kept(self, step: int) -> dict[int, list[float]]:
        """Return by rank the step's losses of which this rank keeps a copy."""
        if self.was is None or self.copies is None or step not in self.copies.kept:
            return {}
        return {self.was[0] + self.copies.world.local_size: decoded(self.copies.kept[step]).losses}

    def has_drawn(self) -> bool:
        """Return whether random numbers were drawn since the generators were recorded."""
        return self.drawn is not None and (self.drawn.torch, self.drawn.gpu) != torch_state()

    def take_snapshot(self, loop: Loop, step_samples: int | None, spent: Spent | None = None) -> None:
        """Keep the shared state after an update of so many samples; None means before the first step."""
        values = {name: getattr(loop, name) for name in _OF_LOOP}
        norm = float(loop.norm) if loop.norm is not None and loop.logs else None  # else nobody looks at it
        values |= {"norm": norm, "step_samples": step_samples, "spent": spent or loop.phases.so_far()}
        step, subjects = loop.progress.step, loop.checkpointer.subjects
        self.snapshot = Snapshot.of(step, subjects.shared, subjects.optimizers, values)

    def go_on_from(self, loop: Loop, step_samples: int | None) -> None:
        """Start from where the loop is now, dropping newer state."""
        self.drawn = self.part = None
        self._know_source(loop)
        self.was = loop.training.world.rank, loop.training.world.size
        self.take_snapshot(loop, step_samples, loop.spent)

    def _know_source(self, loop: Loop) -> None:
        """Record the tensors that a part is taken from; call it between two steps."""
        if self.loads and self.hands_over:
            self.source = Source.of(loop.checkpointer.subjects)

    def take_part(self) -> None:
        """Keep the part of a model that is about to be made anew, unless it is in the middle of an update."""
        self.part = None
        if not self.updating and self.snapshot is not None and self.source is not None:
            try:
                self.part = self.source.part(self.snapshot)
            except CannotHandOver as error:
                log.warning("its shards cannot be handed to another rank: %s", error)
        self.source = None  # else all of the model would be kept

    def standing(self, loop: Loop) -> Standing:
        """Return what this rank reports when the ranks meet again."""
        life, notes = (self.notes.life, self.notes.steps()) if self.notes is not None else ("", ())
        kept = tuple(self.copies.kept) if self.copies is not None else ()
        if self.loads:
            step = None if self.part is None else self.part.step
            return Standing(life, step, notes, kept=kept, shard=loop.strategy.shard, was=self.was)
        step = None if self.snapshot is None or self.updating else self.snapshot.step
        return Standing(life, step, notes, kept=kept, was=self.was)

    def _life(self) -> str:
        """Return the name of this start of all ranks."""
        return f"a{self.launched.attempt:04d}.g{self.launched.generation:04d}"

    def _path(self, world: World) -> Path:
        if self.launched.notes_dir is None:
            raise OSError("launch gives no folder in memory")
        return self.launched.notes_dir / f"rank-{world.rank:05d}"


def _has_buffers(loop: Loop) -> bool:
    """Return whether this rank's buffers belong to the state; with whole replicas only rank 0's do."""
    return loop.training.world.is_first or loop.strategy.is_sharded
