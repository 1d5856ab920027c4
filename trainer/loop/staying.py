"""A training that goes on in its processes when a rank was killed, with `recovery: {mode: hot}` under launch.

    step k:  forward ─ note(k) ─ backward, update ─ snapshot(k) ─ logging, validation, saving ─ step k+1 ...
              what is this rank's alone               all that is small and one for all

A rank was killed: the others fail in an operation that it had part in, leave the step, and wait for launch's word. Or
they hear that word first, of a node that fell silent, and cut their connections, in which they would wait for it. They
and the new rank meet in new groups, agree on the newest step that some of them have done, give its state to who lacks
it, put back what they have noted of it, and go on right after its update. Gradients of a step that was not done are
dropped. Where one more rank is killed meanwhile, launch has another word for them, and they meet once more. Whatever
does not fit in there is told once, and then launch starts all ranks anew.

Under zero1 each rank also writes its share of the optimizer into the memory of its node, right after an update: that of
a rank that was killed is nowhere else. Where one was killed in the middle of an update, or right after it, the others
go back to the step before, and do that one once more.

Where the weights are dealt out too, nobody has those of a rank that was killed. All go back to the newest snapshot in
their nodes' memory then, or to the newest checkpoint: those that live make their model anew, in their processes, and
load it as the new rank does.
"""

import logging
import os
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from traceback import clear_frames
from typing import Any

import torch
import torch.distributed as dist

from trainer.connections import Lookout, made_here
from trainer.data.iterable import is_iterable
from trainer.data.loaders import is_loader
from trainer.loop.loop import Loop
from trainer.loop.settings import Settings
from trainer.loop.sums import gathered
from trainer.staying.agreement import Agreement, Standing, agree
from trainer.staying.control import Control, take_place
from trainer.staying.copies import Copies
from trainer.staying.notes import (
    Drawn,
    Note,
    NoteFile,
    bytes_of,
    draw_on,
    drawn_now,
    encoded,
    put_bytes,
    room_for,
    torch_state,
)
from trainer.staying.replica import Replica, Snapshot, Taker
from trainer.staying.shares import CannotKeep, ShareFile
from trainer.strategies import Strategy
from trainer.strategies.replicas import made_anew
from trainer.strategies.settings import REPLICAS, SHARDS
from trainer.wire import Launched, Wire
from trainer.world import Membership, World

log = logging.getLogger("trainer")
_WORD_S = 20.0  # from a failed operation, or the end of a lease, to launch's word; without it the rank fails
_OF_GLOO = "/gloo/"  # in what its errors say: the place in its sources
_LOST = "another rank was lost"  # what a team says that has lost one
_CANNOT = "the training cannot go on in place: "  # what an error begins with that no other meeting mends
# Settings by which a process has more than what is loaded, or handed over to another rank.
_NOT_LOADED = ("lr_find", "profile", "fast_dev_run", "count_flops", "spike_factor", "mesh")
_NOT_HANDED_OVER = (*_NOT_LOADED, "compile", "keep_best", "ema")
_KEPT = ("steps", "samples", "left", "info", "logs", "gathers", "rates", "means")  # of the loop


@dataclass(slots=True)
class Stay:
    """One rank's part in it, over all groups that it meets the others in."""

    wire: Wire
    launched: Launched
    member: Membership | None
    arrives: bool  # the others are in the middle of the training
    loads: bool = False  # the state of a rank that was killed is kept by snapshots and checkpoints alone
    active: bool = False
    control: Control | None = None
    notes: NoteFile | None = None
    shares: ShareFile | None = None  # with zero1
    copies: Copies | None = None  # of what the ranks of another node note, where a spare may take its place
    snapshots: list[Snapshot] = field(default_factory=list)  # of the last step; with zero1 of the last two
    step_samples: int | None = None  # of the step after which it goes on; None: before the first one
    was_at: int = 0  # the step, when another rank was killed
    _drawn: Drawn | None = None
    _updating: bool = False
    _lookout: Lookout | None = None

    @classmethod
    def of(cls, world: World, *, loads: bool) -> "Stay":
        launched = Launched.from_environment()
        member = Membership.only_use(world)
        return cls(Wire(launched.progress), launched, member, world.anew and member is not None, loads)

    # -- in each step

    def begin(self, loop: Loop, settings: Settings, dataset: Any, *, made: bool) -> None:
        """Before the first step of a start: from now on another rank may be replaced.

        `made`: the model was, by a function.
        """
        if self.launched.control is None or self.active:
            return
        able, world = self._is_able(loop, settings, dataset, made=made), loop.training.world
        if self._copies_notes(loop) and not all(gathered(able, world)):
            return  # ranks that keep copies for each other begin together
        if not able:
            return
        if self.loads:
            self._begin_to_load(loop)
            return
        self.active = True
        loop.stay = self
        if self._copies_notes(loop):
            self.copies = Copies(world)
        self._note(loop, loop.progress.step)
        self._copied()
        self._take(loop, None)
        if self.active:
            self._look_out()
            self._say()

    def _is_able(self, loop: Loop, settings: Settings, dataset: Any, *, made: bool) -> bool:
        """It has what it takes; where not, that is said."""
        if why := next(reasons(loop, settings, dataset, self, made=made), ""):
            loop.training.say(f"a killed rank will have all ranks started anew: {why}")
            return False
        if self.loads or self.launched.control is None:
            return self.loads
        try:
            self.control = Control(self.launched.control)
            path, life = self._path(loop.training.world), _life(self.launched)
            self.notes = NoteFile.begin(path, life, _room(loop))
            if loop.strategy.shared_out:
                self.shares = ShareFile.begin(_of_share(path), life, self._limit_bytes(loop))
                self.shares.write(loop.progress.step, loop.strategy.shared_out)
        except (OSError, CannotKeep) as error:
            log.warning("a killed rank will have all ranks started anew: %s", error)
            return False
        return True

    def _begin_to_load(self, loop: Loop) -> None:
        """Nothing has to be noted: what is saved has all that it takes. Without anything there is no way but anew."""
        self._await_words()
        if loop.checkpointer.loaded is not None:
            self._have_arrived()
        else:
            self.active = True
            loop.checkpointer.when_first_saved = self._say
        every = self.launched.memory_every
        where = f"the newest snapshot in memory: one is made every {every}" if every else "the newest checkpoint"
        loop.training.say(f"a killed rank will have all go back in their processes, to {where}")

    def note(self, loop: Loop) -> None:
        """After the last forward pass of a step."""
        self._note(loop, loop.progress.step + 1)

    def updating(self) -> None:
        """From here on until `updated` the weights are of no step."""
        self._copied()
        self._updating = True

    def updated(self, loop: Loop, step_samples: int) -> None:
        if not self.active:
            return
        if self._drawn is not None and self._drawn.torch != torch_state():
            self.end(loop, "the backward pass, or the optimizer, draws random numbers")
        if self.shares is not None and self.active:
            try:
                self.shares.write(loop.progress.step, loop.strategy.shared_out)
            except CannotKeep as error:
                if not loop.training.world.is_first:  # which may have a smaller share
                    log.warning("a killed rank will have all ranks started anew from now on: %s", error)
                self.end(loop, str(error))
        self._take(loop, step_samples)
        self._updating = False

    def end(self, loop: Loop, why: str) -> None:
        """No more: launch may start all ranks anew."""
        if self.active:
            self.active = False
            if self.copies is None:  # else ranks of other nodes wait for its notes, if only to hear that there are none
                loop.stay = None
            self._look_no_more()
            self.wire.report(stays=0)
            loop.training.say(f"a killed rank will have all ranks started anew from now on: {why}")

    def close(self) -> None:
        """The training is over; what comes after it in the script finds ranks that are alike."""
        if self.active:
            self.active = False
            self._look_no_more()
            self.wire.report(stays=0)
        if self.member is not None:
            self.member.world = replace(self.member.world, anew=False)

    def _note(self, loop: Loop, step: int) -> None:
        data = b""
        if self.notes is not None and self.active:
            names, losses = loop.losses.noted() if loop.gathers else ((), [])
            self._drawn = drawn_now()
            buffers = bytes_of(loop.strategy.buffers) if loop.training.world.is_first else b""
            data = encoded(Note(step, self._drawn, names, losses, buffers))
            if not self.notes.write(step, data):
                self.end(loop, f"what a rank has to note of a step takes too much room in {self.notes.path}")
        if self.copies is not None:
            self.copies.exchange(step, data)

    def _copied(self) -> None:
        """Nobody has done a step before all have what they keep of it for others."""
        if self.copies is not None:
            self.copies.finish()

    def _look_out(self) -> None:
        """For launch's word from now on: of a node that is only silent no operation fails by itself."""
        if self._lookout is None and self.control is not None:
            self._lookout = made_here.cut_on(self.control.fileno())

    def _look_no_more(self) -> None:
        lookout, self._lookout = self._lookout, None
        if lookout is not None:
            lookout.close()

    def _take(self, loop: Loop, step_samples: int | None) -> None:
        values = {name: getattr(loop, name) for name in _KEPT}
        values |= {"norm": None if loop.norm is None else float(loop.norm), "step_samples": step_samples}
        step, subjects = loop.progress.step, loop.checkpointer.subjects
        kept = 1 if self.shares is None else 2
        self.snapshots.append(Snapshot.of(step, subjects.shared, subjects.optimizers, values))
        del self.snapshots[:-kept]

    def _say(self) -> None:
        self.wire.report(stays=self.launched.generation)

    # -- after a rank was killed

    def meet_anew(self, error: RuntimeError, strategy: Strategy | None, loop: Loop | None) -> World:
        """On a rank that lives: leave the step, or the meeting, and meet the others again. Raises the error where it is
        another one, or where launch has no such word. `strategy`: what there is of it, which goes on unless it `loads`.
        """
        while True:
            able = self._may_meet and (self.loads or strategy is not None)
            if not able or self.member is None or self.control is None or not _is_of_peers(error):
                raise error
            self._look_no_more()
            made_here.cut()  # whoever waits for this rank leaves too
            word = self.control.wait(_WORD_S + self.launched.lease_s)
            if word is None:
                raise error
            if loop is not None:
                self.was_at = loop.progress.step if self.active else self.was_at
                loop.checkpointer.abandon()
            self.active, self.arrives = False, True
            take_place(word)
            os.environ["LAUNCH_JOINS"] = "1"
            self.launched = Launched.from_environment()
            try:
                world = self.member.meet_anew(self.control.fileno())
                self._look_out()
                if self.loads or strategy is None:
                    clear_frames(error.__traceback__)  # they have the model that is to be made anew
                    return replace(world, anew=False)
                strategy.meet_anew(world)
            except RuntimeError as again:
                error, loop = again, None
            else:
                return world

    @property
    def _may_meet(self) -> bool:
        """In the middle of an update there is no way but back."""
        return (self.active or self.arrives) and (not self._updating or self.shares is not None)

    def arrive(self, loop: Loop) -> int:
        """On all ranks, in new groups: be where the training goes on from. Gives the step."""
        try:
            return self._arrive(loop)
        except Exception as error:
            if isinstance(error, RuntimeError) and (_is_of_peers(error) or _CANNOT in str(error)):
                raise
            # Warm: it is no error of the user's, or is one of the next start too.
            raise dist.DistBackendError(f"{_CANNOT}{type(error).__name__}: {error}") from error

    def _arrive(self, loop: Loop) -> int:
        world, subjects = loop.training.world, loop.checkpointer.subjects
        if self.notes is None:
            self.notes = NoteFile.found(self._path(world))
        if self.shares is None and loop.strategy.shared_out:
            self.shares = ShareFile.found(_of_share(self._path(world)), self._limit_bytes(loop))
        said = gathered(self._standing(loop), world)
        agreed = agree(said, world.local_size)
        if isinstance(agreed, str):
            raise dist.DistBackendError(_CANNOT + agreed)
        self._lend(loop, agreed, said[agreed.source].life)
        loop.checkpointer.go_on(agreed.step)
        if agreed.goes_back:
            self._updating = True
            self._put_share_back(loop, agreed.step)
            for optimizer in loop.strategy.shared_out.values():
                optimizer.spread()
        if world.rank in agreed.takers:
            self.snapshots.clear()  # until it has all of it
            values = Taker(agreed.source, agreed.step, subjects, world).take()
            self._put_share_back(loop, agreed.step)
        else:
            snapshot = next(one for one in self.snapshots if one.step == agreed.step)
            if world.rank == agreed.source and agreed.takers:
                Replica(subjects, snapshot).give(agreed.takers, world.control)
            snapshot.put_back(subjects)
            values = dict(snapshot.loop)
        for buffer in made_anew(loop.strategy.module):  # the new rank may have made others
            value = buffer.detach().contiguous()
            dist.broadcast(value, src=agreed.source, group=world.control)
            buffer.copy_(value)
        self._put_back(loop, agreed.step, values)
        self._copy_anew(loop, agreed.step)
        who = ", ".join(map(str, agreed.takers)) or "none"
        loop.training.say(f"goes on in place after step {agreed.step}; ranks that took its state from others: {who}")
        return agreed.step

    def _standing(self, loop: Loop) -> Standing:
        life, notes = (self.notes.life, self.notes.steps()) if self.notes is not None else ("", ())
        knows = tuple(one.step for one in self.snapshots)
        step = knows[-1] if knows and not self._updating else None
        if not loop.strategy.shared_out:
            return Standing(life, step, notes, kept=tuple(self.copies.kept) if self.copies is not None else ())
        kept = self.shares is not None and self.shares.life == life
        return Standing(life, step, notes, self.shares.steps() if kept and self.shares is not None else (), knows)

    def _put_share_back(self, loop: Loop, step: int) -> None:
        """With zero1: what nobody else has."""
        if loop.strategy.shared_out and (
            self.shares is None or not self.shares.put_back(step, loop.strategy.shared_out)
        ):
            raise dist.DistBackendError(f"{_CANNOT}the share of step {step} is gone")

    def _lend(self, loop: Loop, agreed: Agreement, life: str) -> None:
        """To a rank whose notes were lost with its node: that of the step, from who kept it."""
        world = loop.training.world
        for keeper, rank in agreed.lent:
            if world.rank == keeper and self.copies is not None:
                dist.send_object_list([self.copies.kept[agreed.step]], dst=rank, group=world.control)
            elif world.rank == rank:
                said: list[Any] = [None]
                dist.recv_object_list(said, src=keeper, group=world.control)
                self.notes = NoteFile.begin(self._path(world), life, _room(loop))
                self.notes.write(agreed.step, said[0])

    def _copies_notes(self, loop: Loop) -> bool:
        """Where that is all that would be lost with a node."""
        return self.launched.notes_copied and not self.loads and not loop.strategy.shared_out

    def _copy_anew(self, loop: Loop, step: int) -> None:
        """Who keeps copies may be new too."""
        if not self._copies_notes(loop):
            return
        world = loop.training.world
        if self.copies is None:
            self.copies = Copies(world)
        else:
            self.copies.meet_anew(world)
        note = self.notes.read(step) if self.notes is not None else None
        self.copies.exchange(step, b"" if note is None else encoded(note))
        self._copied()

    def _put_back(self, loop: Loop, step: int, values: dict[str, Any]) -> None:
        world = loop.training.world
        note = self.notes.read(step) if self.notes is not None else None
        if note is None:
            raise dist.DistBackendError(f"{_CANNOT}the note of step {step} is gone")
        if buffers := loop.strategy.buffers:
            size = sum(one.nbytes for one in buffers)
            flat = torch.frombuffer(bytearray(note.buffers or bytes(size)), dtype=torch.uint8)
            dist.broadcast(flat, src=0, group=world.control)
            put_bytes(flat.numpy().tobytes(), buffers)
        norm = values.pop("norm")
        self.step_samples = values.pop("step_samples")
        for name, value in values.items():
            setattr(loop, name, value)
        loop.norm = None if norm is None else torch.tensor(norm, dtype=torch.float64)
        self._put_back_losses(loop, note)
        draw_on(note.drawn)

    def _put_back_losses(self, loop: Loop, note: Note) -> None:
        if note.names:
            loop.losses.put_back(note.names, note.losses)

    def go_on(self, loop: Loop) -> None:
        """All is put back."""
        self._await_words()
        loop.stay = self
        self._drawn = None
        self.snapshots.clear()
        if self.shares is not None:
            self.shares.forget_after(loop.progress.step)
        self._take(loop, self.step_samples)
        self._have_arrived()

    def have_loaded(self, loop: Loop) -> None:
        """On all ranks, where they load. Raises DistBackendError where there was nothing: the objects of a process that
        stays are not what they began as, so that all have to start anew.
        """
        loaded = loop.checkpointer.loaded
        if loaded is None:
            raise dist.DistBackendError(f"{_CANNOT}nothing was saved so far")
        lost = max(gathered(self.was_at, loop.training.world)) - loaded.step
        where = "memory" if loaded.from_memory else "a checkpoint"
        loop.training.say(f"goes on in place after step {loaded.step}, from {where}; done again: {max(0, lost)} steps")

    def _await_words(self) -> None:
        if self.control is None and self.launched.control is not None:
            self.control = Control(self.launched.control)

    def _have_arrived(self) -> None:
        os.environ.pop("LAUNCH_JOINS", None)
        self.arrives, self.active, self._updating = False, True, False
        self._look_out()
        self._say()

    def _limit_bytes(self, loop: Loop) -> int | None:
        """Of what a node may spend on snapshots, this rank's part."""
        limit = self.launched.memory_limit_bytes
        return None if limit is None else limit // loop.training.world.local_size

    def _path(self, world: World) -> Path:
        if self.launched.notes_dir is None:
            raise OSError("launch gives no folder in memory")
        return self.launched.notes_dir / f"rank-{world.rank:05d}"


def reasons(loop: Loop, settings: Settings, dataset: Any, stay: Stay, *, made: bool) -> Iterator[str]:
    """Why what a step does could not be undone exactly, or not be handed to another rank."""
    world, strategy = loop.training.world, loop.strategy
    if stay.member is None:
        yield "the ranks had met before, or by the script's own doing, or are too many"
    if strategy.settings.strategy not in REPLICAS + SHARDS or world.size == 1:
        yield f"strategy {strategy.settings.strategy} on {world.size} ranks: expected one for several ranks, on several"
    if stay.loads and not made:
        yield "the model was given, and its shards know their ranks: expected a function that makes it"
    if strategy.pipeline is not None:
        yield "the model is in stages, which have not been shown to go on in place"
    if world.device.type != "cpu":
        yield f"on {world.device.type}: expected CPUs"
    if loop.own_step is not None:
        yield "it has a training step of its own"
    if is_iterable(dataset) or is_loader(dataset):
        yield "its data is a stream, or comes by a loader"
    for name in _NOT_LOADED if stay.loads else _NOT_HANDED_OVER:
        if getattr(settings, name) not in (None, False):
            yield f"{name} is set"
    if stay.launched.disks_apart:
        yield "each node has a disk of its own"
    for module in () if stay.loads else strategy.module.modules():
        if type(module).get_extra_state is not torch.nn.Module.get_extra_state:
            yield f"{type(module).__name__} has extra state"


def _of_share(notes: Path) -> Path:
    return notes.with_name(f"{notes.name}-share")


def _is_of_peers(error: RuntimeError) -> bool:
    """Whether it is about another rank that is gone. Other errors are the user's, and told of at once."""
    said = str(error)
    return _CANNOT not in said and (isinstance(error, dist.DistError) or _OF_GLOO in said or _LOST in said)


def _life(launched: Launched) -> str:
    """Of a start of all ranks."""
    return f"a{launched.attempt:04d}.g{launched.generation:04d}"


def _room(loop: Loop) -> int:
    first = loop.training.world.is_first
    return room_for(sum(one.nbytes for one in loop.strategy.buffers) if first else 0)
