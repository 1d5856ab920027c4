"""What a rank keeps of each step, so that the training can go on right after it where a rank was killed.

notes      what is this rank's alone, in its node's memory, before its gradients are out
share      with zero1, what it alone has of the optimizer, in its node's memory, after the update
copies     where a node may be lost: notes of a rank of another node, in this process
left part  with hsdp, once all others that have its shards were killed, in its node's memory
snapshots  all that is small and one for all, in this process, after the update
"""

import logging
from collections.abc import Collection
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from trainer.loop.loop import Loop
from trainer.loop.phases import Spent
from trainer.loop.sums import gathered
from trainer.staying.agreement import Standing
from trainer.staying.copies import Copies
from trainer.staying.left_parts import LeftPart
from trainer.staying.notes import (
    Drawn,
    Note,
    NoteFile,
    bytes_of,
    decoded,
    drawn_now,
    encoded,
    numpy_draws,
    room_for,
    torch_state,
)
from trainer.staying.packing import CannotKeep
from trainer.staying.parts import Part, Source
from trainer.staying.replica import Snapshot
from trainer.staying.shares import ShareFile
from trainer.wire import Launched
from trainer.world import World

log = logging.getLogger("trainer")
_OF_LOOP = ("steps", "samples", "left", "info", "logs", "gathers", "rates", "means")


@dataclass(slots=True)
class Keeping:
    """One rank's, over all groups that it meets the others in."""

    launched: Launched
    loads: bool  # the state of a rank that was killed may be kept by snapshots and checkpoints alone
    hands_over: bool  # another rank has it too; with `loads` as well: another rank may have it
    made: bool  # the model was, by a function: it can be made anew
    suffices: bool  # the ranks of a node have all of the parameters between them
    notes: NoteFile | None = None
    shares: ShareFile | None = None  # with zero1
    copies: Copies | None = None  # of what the ranks of another node note, where a spare may take its place
    snapshots: list[Snapshot] = field(default_factory=list)  # of the last step; with zero1 of the last two
    source: Source | None = None  # with hsdp: what its part can be taken from
    part: Part | None = None
    alike: frozenset[int] = frozenset()  # the other ranks that have that too
    left: LeftPart | None = None  # where it, or whose place is taken, may have left that
    updating: bool = False  # the weights are of no step
    drawn: Drawn | None = None  # what was noted last of this rank's random generators
    was: tuple[int, int] | None = None  # which rank, and of how many, it is in its notes
    validated: tuple[int, dict[str, float]] = (-1, {})  # the step of the last validation, and what it found
    believed: dict[int, bool] = field(default_factory=dict)  # checkpoints that this process has verified, or written
    resized: bool = False  # the end of the step after which it goes on is for other ranks than its beginning was
    saved: bool = False  # something was, that fewer ranks could load

    def begin(self, loop: Loop) -> None:
        """Make room in the node's memory. Raises OSError, and CannotKeep."""
        numpy_draws.forget()  # what was loaded has put its state back
        self.snapshots.clear()
        path, life = self._path(loop.training.world), self._life()
        self.let_go()
        _of_part(path).unlink(missing_ok=True)
        self.notes = NoteFile.begin(path, life, _room(loop))
        if loop.strategy.shared_out:
            self.shares = ShareFile.begin(_of_share(path), life, self._limit_bytes(loop.training.world))
            self.shares.write(loop.progress.step, loop.strategy.shared_out)
        self.was = loop.training.world.rank, loop.training.world.size
        self._know_source(loop)

    def let_go(self) -> None:
        """Of what it has noted as another rank, as one of more, or till now."""
        if self.notes is not None:
            self.notes.path.unlink(missing_ok=True)
            _of_share(self.notes.path).unlink(missing_ok=True)
        self.notes = self.shares = None

    @property
    def resizes(self) -> bool:
        """What this rank has is enough for fewer or more ranks, and they can be."""
        return self.may_resize and self.hands_over and self.shares is None

    @property
    def may_resize(self) -> bool:
        """What the ranks of a node have is enough. Not unasked: a script may have made something of the number of
        ranks, which is not asked again here.
        """
        return self.launched.notes_copied and self.suffices and not self.launched.stays_by_itself

    @property
    def shrinks(self) -> bool:
        """All load, and what was saved can be dealt out among fewer ranks."""
        if self.loads:  # it stays only once something was
            return not self.hands_over
        return self.shares is not None and self.made and self.saved

    @property
    def goes_back(self) -> bool:
        """What this rank has is nowhere else, once its node is gone."""
        return self.shrinks or self.shares is not None

    def find(self, loop: Loop) -> None:
        """What the rank whose place is taken has left in this node's memory."""
        path = self._path(loop.training.world)
        if self.notes is None:
            self.notes = NoteFile.found(path)
        if self.shares is None and loop.strategy.shared_out:
            self.shares = ShareFile.found(_of_share(path), self._limit_bytes(loop.training.world))
        if self.loads and self.part is None and self.notes is not None:
            self.left = self.left or LeftPart(_of_part(self.notes.path))
            self.part = self.left.found(self.notes.life)

    def copies_notes(self, loop: Loop) -> bool:
        """Where that is all that would be lost with a node."""
        return self.launched.notes_copied and self.hands_over and not loop.strategy.shared_out

    def note(self, loop: Loop, step: int, *, known: bool) -> bool:
        """What is this rank's alone after that step. False where there is no room for it. `known`: else there is
        nothing to note any more, and who keeps a copy hears that.
        """
        data, fits = b"", True
        if self.notes is not None and known:
            names, losses = loop.losses.noted() if loop.gathers else ((), [])
            self.drawn = drawn_now()
            buffers = bytes_of(loop.strategy.buffers) if _has_buffers(loop) else b""
            data = encoded(Note(step, self.drawn, names, losses, buffers))
            fits = self.notes.write(step, data)
        if self.copies is not None:
            self.copies.exchange(step, data)
        return fits

    def copied(self) -> None:
        """Nobody has done a step before all have what they keep of it for others."""
        if self.copies is not None:
            self.copies.finish()

    def copy_anew(self, loop: Loop, step: int) -> None:
        """In new groups: who keeps copies may be new too."""
        if not self.copies_notes(loop):
            return
        world = loop.training.world
        if self.copies is None:
            self.copies = Copies(world)
        else:
            self.copies.meet_anew(world)
        note = self.notes.read(step) if self.notes is not None else None
        self.copies.exchange(step, b"" if note is None else encoded(note))
        self.copied()

    def take_note(self, loop: Loop, life: str, step: int, data: bytes) -> None:
        """The note of that step, from who kept a copy of it: this rank's was lost with its node. Raises OSError."""
        self.notes = NoteFile.begin(self._path(loop.training.world), life, _room(loop))
        self.notes.write(step, data)

    def note_anew(self, loop: Loop, step: int) -> bool:
        """The ranks are others from the end of this step on: note it as one of them, with what those knew of its losses
        that are no more. False where there is no room for it. Raises OSError.
        """
        world, before = loop.training.world, self.notes
        own = before.read(step) if before is not None and self.was is not None else None
        told = None if own is None else (own.names, own.others)
        said = gathered((self.was, self._losses_kept(step), told), world)
        names, others = next(told for *_, told in said if told is not None)
        there = {was for was, *_ in said}
        gone = [losses for was, kept, _ in said for rank, losses in kept.items() if (rank, was[1]) not in there]
        mine = own or Note(step, drawn_now())  # who is new took no part in the step
        note = Note(step, mine.drawn, names, mine.losses, mine.buffers, [*others, *gone], resized=True)
        self.notes = NoteFile.begin(self._path(world), self._life(), _room(loop))
        self.was, self.copies = (world.rank, world.size), None
        if before is not None and before.path != self.notes.path:
            before.path.unlink(missing_ok=True)
        return self.notes.write(step, encoded(note))

    def _losses_kept(self, step: int) -> dict[int, list[float]]:
        """By rank those of the step that another one has noted, of which this rank keeps a copy."""
        if self.was is None or self.copies is None or step not in self.copies.kept:
            return {}
        return {self.was[0] + self.copies.world.local_size: decoded(self.copies.kept[step]).losses}

    def has_drawn(self) -> bool:
        """Random numbers, since it was noted what the generators are."""
        return self.drawn is not None and (self.drawn.torch, self.drawn.gpu) != torch_state()

    def take_share(self, loop: Loop) -> None:
        """After an update. Raises CannotKeep."""
        if self.shares is not None:
            self.shares.write(loop.progress.step, loop.strategy.shared_out)

    def put_share_back(self, loop: Loop, step: int) -> bool:
        """With zero1: what nobody else has. False where it is gone."""
        of_zero1 = loop.strategy.shared_out
        return not of_zero1 or (self.shares is not None and self.shares.put_back(step, of_zero1))

    def take_snapshot(self, loop: Loop, step_samples: int | None, spent: Spent | None = None) -> None:
        """After an update of so many samples; None: before the first step. `spent`: where that is not of now."""
        values = {name: getattr(loop, name) for name in _OF_LOOP}
        norm = float(loop.norm) if loop.norm is not None and loop.logs else None  # else nobody looks at it
        values |= {"norm": norm, "step_samples": step_samples, "spent": spent or loop.phases.so_far()}
        step, subjects = loop.progress.step, loop.checkpointer.subjects
        kept = 1 if self.shares is None else 2
        self.snapshots.append(Snapshot.of(step, subjects.shared, subjects.optimizers, values))
        del self.snapshots[:-kept]

    def go_on_from(self, loop: Loop, step_samples: int | None) -> None:
        """Where the loop is now: what is newer is of a past that did not happen."""
        self.drawn = self.part = None
        self._know_source(loop)
        self.was = loop.training.world.rank, loop.training.world.size
        self.snapshots.clear()
        if self.shares is not None:
            self.shares.forget_after(loop.progress.step)
        self.take_snapshot(loop, step_samples, loop.spent)

    def _know_source(self, loop: Loop) -> None:
        """Between two steps."""
        if self.loads and self.hands_over:
            self.source, self.alike = Source.of(loop.checkpointer.subjects), loop.strategy.copies

    def take_part(self) -> None:
        """Of a model that is about to be made anew. Where it is in the middle of an update it is of no use."""
        try:
            self.part = self._part()
        except CannotKeep as error:
            log.warning("its shards cannot be handed to another rank: %s", error)
        self.source = None  # else all of the model would be kept

    def _part(self) -> Part | None:
        if self.updating or not self.snapshots or self.source is None:
            return None
        return self.source.part(self.snapshots[-1])

    def leave_part(self, new: Collection[int], world: World) -> None:
        """Where this rank alone has it: all others that had it are new, and this one may be killed before they have it
        again. By any thread, in the middle of a step, too.
        """
        if self.notes is None or not self.alike or not self.alike.issubset(new):
            return
        self.left = self.left or LeftPart(_of_part(self.notes.path))
        try:
            part, taken = self.part or self._part(), self.part is not None
            if part is not None:
                still = partial(self._is_after, part.snapshot) if not taken else lambda: True
                self.left.leave(self.notes.life, part, self._limit_bytes(world), still)
        except (CannotKeep, RuntimeError) as error:  # its optimizer may just have begun to keep something
            log.debug("what this rank alone has is not in memory: %s", error)

    def _is_after(self, snapshot: Snapshot) -> bool:
        return not self.updating and bool(self.snapshots) and self.snapshots[-1] is snapshot

    def drop_left_part(self) -> None:
        """After a step, which all ranks have taken part in: others have it too."""
        if self.left is not None:
            self.left.drop()
            self.left = None

    def standing(self, loop: Loop) -> Standing:
        """What this rank says when the ranks meet again."""
        life, notes = (self.notes.life, self.notes.steps()) if self.notes is not None else ("", ())
        kept = tuple(self.copies.kept) if self.copies is not None else ()
        if self.loads:
            self.alike = loop.strategy.copies
            step = None if self.part is None else self.part.step
            return Standing(life, step, notes, kept=kept, shard=loop.strategy.shard, was=self.was)
        knows = tuple(one.step for one in self.snapshots)
        step = knows[-1] if knows and not self.updating else None
        if not loop.strategy.shared_out:
            return Standing(life, step, notes, kept=kept, was=self.was)
        shares = self.shares.steps() if self.shares is not None and self.shares.life == life else ()
        return Standing(life, step, notes, shares, knows, was=self.was)

    def _life(self) -> str:
        """Of a start of all ranks."""
        return f"a{self.launched.attempt:04d}.g{self.launched.generation:04d}"

    def _limit_bytes(self, world: World) -> int | None:
        """Of what a node may spend on snapshots, this rank's part."""
        limit = self.launched.memory_limit_bytes
        return None if limit is None else limit // world.local_size

    def _path(self, world: World) -> Path:
        if self.launched.notes_dir is None:
            raise OSError("launch gives no folder in memory")
        return self.launched.notes_dir / f"rank-{world.rank:05d}"


def _of_share(notes: Path) -> Path:
    return notes.with_name(f"{notes.name}-share")


def _of_part(notes: Path) -> Path:
    return notes.with_name(f"{notes.name}-part")


def _has_buffers(loop: Loop) -> bool:
    """Whether those of this rank belong to the state: all follow the first one's where ranks have all of the model."""
    return loop.training.world.is_first or loop.strategy.is_sharded


def _room(loop: Loop) -> int:
    return room_for(sum(one.nbytes for one in loop.strategy.buffers) if _has_buffers(loop) else 0)
