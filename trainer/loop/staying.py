"""A training that goes on in its processes when a rank was killed, with `recovery: {mode: hot}` under launch.

    step k:  forward ─ note(k) ─ backward, update ─ snapshot(k) ─ logging, validation, saving ─ step k+1 ...
              what is this rank's alone               all that is small and one for all

A rank was killed: the others fail in an operation that it had part in, leave the step, and wait for launch's word. They
and the new rank meet in new groups, agree on the newest step that some of them have done, give its state to who lacks
it, put back what they have noted of it, and go on right after its update. Gradients of a step that was not done are
dropped. Where one more rank is killed meanwhile, launch has another word for them, and they meet once more. Whatever
does not fit in there is told once, and then launch starts all ranks anew.
"""

import logging
import os
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.distributed as dist

from trainer.connections import made_here
from trainer.data.iterable import is_iterable
from trainer.data.loaders import is_loader
from trainer.loop.loop import Loop
from trainer.loop.settings import Settings
from trainer.loop.sums import gathered
from trainer.staying.agreement import Standing, agree
from trainer.staying.control import Control, take_place
from trainer.staying.notes import Drawn, Note, NoteFile, bytes_of, draw_on, drawn_now, put_bytes, room_for, torch_state
from trainer.staying.replica import Replica, Snapshot, Taker
from trainer.strategies import Strategy
from trainer.strategies.replicas import made_anew
from trainer.wire import Launched, Wire
from trainer.world import Membership, World

log = logging.getLogger("trainer")
_WORD_S = 20.0  # from a failed operation to launch's word; without it the rank fails as any other
_OF_GLOO = "/gloo/"  # in what its errors say: the place in its sources
_LOST = "another rank was lost"  # what a team says that has lost one
_CANNOT = "the training cannot go on in place: "  # what an error begins with that no other meeting mends
_KEPT = ("steps", "samples", "left", "info", "logs", "gathers", "rates", "means")  # of the loop


@dataclass(slots=True)
class Stay:
    """One rank's part in it, over all groups that it meets the others in."""

    wire: Wire
    launched: Launched
    member: Membership | None
    arrives: bool  # the others have the state of the training
    active: bool = False
    control: Control | None = None
    notes: NoteFile | None = None
    snapshot: Snapshot | None = None
    step_samples: int | None = None  # of the step after which it goes on; None: before the first one
    _drawn: Drawn | None = None
    _updating: bool = False

    @classmethod
    def of(cls, world: World) -> "Stay":
        launched = Launched.from_environment()
        member = Membership.only_use(world)
        return cls(Wire(launched.progress), launched, member, arrives=world.anew and member is not None)

    # -- in each step

    def begin(self, loop: Loop, settings: Settings, dataset: Any) -> None:
        """Before the first step of a start: from now on another rank may be replaced."""
        if self.launched.control is None or self.active:
            return
        if why := next(reasons(loop, settings, dataset, self), ""):
            loop.training.say(f"a killed rank will have all ranks started anew: {why}")
            return
        try:
            self.control = Control(self.launched.control)
            self.notes = NoteFile.begin(self._path(loop.training.world), _life(self.launched), _room(loop))
        except OSError as error:
            log.warning("a killed rank will have all ranks started anew: %s", error)
            return
        self.active = True
        loop.stay = self
        self._note(loop, loop.progress.step)
        self._take(loop, None)
        self._say()

    def note(self, loop: Loop) -> None:
        """After the last forward pass of a step."""
        self._note(loop, loop.progress.step + 1)

    def updating(self) -> None:
        """From here on until `updated` the weights are of no step."""
        self._updating = True

    def updated(self, loop: Loop, step_samples: int) -> None:
        if self._drawn is not None and self._drawn.torch != torch_state():
            self.end(loop, "the backward pass, or the optimizer, draws random numbers")
        self._take(loop, step_samples)
        self._updating = False

    def end(self, loop: Loop, why: str) -> None:
        """No more: launch may start all ranks anew."""
        if self.active:
            self.active, loop.stay = False, None
            self.wire.report(stays=0)
            loop.training.say(f"a killed rank will have all ranks started anew from now on: {why}")

    def close(self) -> None:
        """The training is over; what comes after it in the script finds ranks that are alike."""
        if self.active:
            self.active = False
            self.wire.report(stays=0)
        if self.member is not None:
            self.member.world = replace(self.member.world, anew=False)

    def _note(self, loop: Loop, step: int) -> None:
        if self.notes is None:
            return
        names, losses = loop.losses.noted() if loop.gathers else ((), [])
        self._drawn = drawn_now()
        buffers = bytes_of(loop.strategy.buffers) if loop.training.world.is_first else b""
        if not self.notes.write(Note(step, self._drawn, names, losses, buffers)):
            self.end(loop, f"what a rank has to note of a step takes too much room in {self.notes.path}")

    def _take(self, loop: Loop, step_samples: int | None) -> None:
        values = {name: getattr(loop, name) for name in _KEPT}
        values |= {"norm": None if loop.norm is None else float(loop.norm), "step_samples": step_samples}
        step, subjects = loop.progress.step, loop.checkpointer.subjects
        self.snapshot = Snapshot.of(step, subjects.shared, subjects.optimizers, values)

    def _say(self) -> None:
        self.wire.report(stays=self.launched.generation)

    # -- after a rank was killed

    def meet_anew(self, error: RuntimeError, strategy: Strategy, loop: Loop | None) -> World:
        """On a rank that lives: leave the step, or the meeting, and meet the others again. Raises the error where it is
        another one, or where launch has no such word."""
        while True:
            if not self._may_meet or self.member is None or self.control is None or not _is_of_peers(error):
                raise error
            made_here.cut()  # whoever waits for this rank leaves too
            word = self.control.wait(_WORD_S)
            if word is None:
                raise error
            self.active, self.arrives = False, True
            if loop is not None:
                loop.checkpointer.abandon()
            take_place(word)
            os.environ["LAUNCH_JOINS"] = "1"
            self.launched = Launched.from_environment()
            try:
                world = self.member.meet_anew(self.control.fileno())
                strategy.meet_anew(world)
            except RuntimeError as again:
                error, loop = again, None
            else:
                return world

    @property
    def _may_meet(self) -> bool:
        return (self.active or self.arrives) and not self._updating

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
        life, steps = (self.notes.life, self.notes.steps()) if self.notes is not None else ("", ())
        mine = Standing(life, self.snapshot.step if self.snapshot is not None else None, steps)
        agreed = agree(gathered(mine, world))
        if isinstance(agreed, str):
            raise dist.DistBackendError(_CANNOT + agreed)
        loop.checkpointer.go_on(agreed.step)
        if world.rank in agreed.takers:
            self.snapshot = None  # until it has all of it
            values = Taker(agreed.source, agreed.step, subjects, world).take()
        else:
            if self.snapshot is None:
                raise AssertionError("who has weights has a snapshot of their step")
            if world.rank == agreed.source and agreed.takers:
                Replica(subjects, self.snapshot).give(agreed.takers, world.control)
            self.snapshot.put_back(subjects)
            values = dict(self.snapshot.loop)
        for buffer in made_anew(loop.strategy.module):  # the new rank may have made others
            value = buffer.detach().contiguous()
            dist.broadcast(value, src=agreed.source, group=world.control)
            buffer.copy_(value)
        self._put_back(loop, agreed.step, values)
        who = ", ".join(map(str, agreed.takers)) or "none"
        loop.training.say(f"goes on in place after step {agreed.step}; ranks that took its state from others: {who}")
        return agreed.step

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
        if self.control is None and self.launched.control is not None:
            self.control = Control(self.launched.control)
        os.environ.pop("LAUNCH_JOINS", None)
        self.arrives, self.active, self._updating = False, True, False
        loop.stay = self
        self._drawn = None
        self._take(loop, self.step_samples)
        self._say()

    def _path(self, world: World) -> Any:
        if self.launched.notes_dir is None:
            raise OSError("launch gives no folder in memory")
        return self.launched.notes_dir / f"rank-{world.rank:05d}"


def reasons(loop: Loop, settings: Settings, dataset: Any, stay: Stay) -> Iterator[str]:
    """Why what a step does could not be undone exactly, or not be handed to another rank."""
    world, strategy = loop.training.world, loop.strategy
    if stay.member is None:
        yield "the ranks had met before, or by the script's own doing, or are too many"
    if strategy.settings.strategy != "ddp" or world.size == 1:
        yield f"strategy {strategy.settings.strategy} on {world.size} ranks: expected ddp on two or more"
    if world.device.type != "cpu":
        yield f"on {world.device.type}: expected CPUs"
    if loop.own_step is not None:
        yield "it has a training step of its own"
    if is_iterable(dataset) or is_loader(dataset):
        yield "its data is a stream, or comes by a loader"
    for name in ("compile", "keep_best", "lr_find", "profile", "fast_dev_run", "count_flops", "ema", "spike_factor"):
        if getattr(settings, name) not in (None, False):
            yield f"{name} is set"
    if stay.launched.disks_apart:
        yield "each node has a disk of its own"
    for module in strategy.module.modules():
        if type(module).get_extra_state is not torch.nn.Module.get_extra_state:
            yield f"{type(module).__name__} has extra state"


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
