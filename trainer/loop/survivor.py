"""Continue a training in its processes when a rank was killed, with `recovery: {mode: hot}` under launch.

    step k:  forward ─ rank state(k) ─ backward, update ─ snapshot(k) ─ logging, validation, saving ─ step k+1 ...
              what is this rank's alone                    the small shared state

When a rank is killed the others fail in an operation with it, leave the step, and wait for launch's message. For a node
that only fell silent the message comes first, and they cut the connections in which they would wait. They and the new
rank meet in new groups, agree on the newest step that some of them have done, send its state to the ranks that lack it,
restore their own, and continue right after its update. Gradients of an unfinished step are dropped. If one more rank is
killed meanwhile, launch sends another message and they meet once more. Whatever does not fit this is logged once, and
then launch starts all ranks anew.

If a node is lost and not replaced, the remaining ranks end step k and continue as fewer: samples are dealt out to them
and their generators seeded as in a start on so many ranks from a checkpoint of step k, so that both give the same
numbers. Where ranks of one more node join, all leave together after step k.

Where weights are sharded too, the survivors make their model anew in their processes. With hsdp another rank has the
shards of a killed one and sends them to the new one: all keep their part of the newest step of which each shard is
left, put it into the new model, and no step is lost. If each node has all shards, their number may then change.

If no rank has what was lost, as with zero1, zero2 and fsdp, or with hsdp after all ranks with a shard were killed, all
go back to the newest snapshot in the nodes' memory, or to the newest checkpoint, and load it as the new rank does.
"""

import logging
import os
import time
from dataclasses import dataclass, field, replace
from functools import partial
from traceback import clear_frames
from typing import Any

import torch.distributed as dist

from trainer.connections import made_here
from trainer.loop.arriving import CANNOT, arrive, cannot, draw_anew
from trainer.loop.can_continue import Pace, PlainState, reasons
from trainer.loop.launch_messages import LaunchMessages
from trainer.loop.loop import Loop
from trainer.loop.settings import Settings
from trainer.loop.step_snapshots import StepSnapshots
from trainer.loop.sums import gathered
from trainer.recovery.control import take_place
from trainer.recovery.copies import Copies
from trainer.strategies import PARTITIONED, Strategy
from trainer.wire import Launched, Wire
from trainer.world import Membership, World

log = logging.getLogger("trainer")
_WORD_S = 20.0  # from a failed operation, or the end of a lease, to launch's word; without it the rank fails
_WORD_UNASKED_S = 5.0  # where nobody was killed none comes, and nobody has asked to wait for it
_OF_GLOO = "/gloo/"  # in what its errors say: the place in its sources
_LOST = "another rank was lost"  # what a team says that has lost one


@dataclass(slots=True)
class Survivor:
    """One rank's part in continuing in place, over all groups in which it meets the others."""

    wire: Wire
    member: Membership | None
    arrives: bool  # the others are in the middle of the training
    snapshots: StepSnapshots
    messages: LaunchMessages = field(default_factory=LaunchMessages)
    active: bool = False
    step_samples: int | None = None  # of the step after which it goes on; None: before the first one
    was_at: int = 0  # the step, when another rank was killed
    goes_back_because: str = ""  # where no rank has what was lost: why all load what was saved
    _pace: Pace = field(default_factory=Pace)
    _plain: PlainState = field(default_factory=PlainState)

    @classmethod
    def of(cls, world: World, settings: Settings, *, made: bool) -> "Survivor":
        """Return the rank's part; `made` says whether a function made the model."""
        launched, loads = Launched.from_environment(), settings.strategy in PARTITIONED
        member = Membership.only_use(world)
        arrives = world.anew and member is not None
        in_node = settings.strategy == "hsdp" and world.local_size % (settings.shard_size or world.local_size) == 0
        snapshots = StepSnapshots(launched, loads, hands_over=not loads, made=made, suffices=in_node or not loads)
        return cls(Wire(launched.progress), member, arrives, snapshots)

    @property
    def loads(self) -> bool:
        """Whether models are made anew when ranks meet again, and lost state is loaded."""
        return self.snapshots.loads

    @property
    def launched(self) -> Launched:
        """The settings that launch gave this rank."""
        return self.snapshots.launched

    # -- in each step

    def begin(self, loop: Loop, settings: Settings, dataset: Any) -> None:
        """Begin before the first step: from now on another rank may be replaced."""
        launched = self.launched
        if self.active or (launched.control is None and not launched.notes_copied):
            return
        able, world = self._is_able(loop, settings, dataset), loop.training.world
        copies_notes = self.snapshots.copies_notes
        if copies_notes:
            able = all(gathered(able, world))  # ranks that keep copies for each other begin together
        if not able or launched.control is None:
            self.snapshots.let_go()
            return
        if not self.snapshots.hands_over:
            self._begin_to_load(loop)
            return
        self.active = True
        self._be_told(loop)
        if copies_notes:
            self.snapshots.copies = Copies(world)
        self._note(loop, loop.progress.step)
        self.snapshots.copied()
        self._take_snapshot(loop, None)
        if self.active:
            self._have_arrived(loop)

    def _is_able(self, loop: Loop, settings: Settings, dataset: Any) -> bool:
        """Return whether the training can continue in place, and log why not."""
        how = {"met_once": self.member is not None, "made": self.snapshots.made}
        why_not = partial(reasons, loop, settings, dataset, self.launched, **how)
        if self.loads:
            self.snapshots.hands_over = self._may_be_handed(loop) and not any(why_not(loads=False))
        if why := next(why_not(loads=not self.snapshots.hands_over), ""):
            self._say_not(loop, f"a killed rank will have all ranks started anew: {why}")
            return False
        if self.launched.control is None or not self.snapshots.hands_over:
            return not self.snapshots.hands_over
        try:
            self.messages.open(self.launched.control)
            self.snapshots.begin(loop)
        except OSError as error:
            level = logging.DEBUG if self.launched.in_place_unasked else logging.WARNING
            log.log(level, "a killed rank will have all ranks started anew: %s", error)
            return False
        return True

    def _may_be_handed(self, loop: Loop) -> bool:
        """Return whether another rank has this rank's parameters too, or may once there are more ranks."""
        return bool(loop.strategy.copies) or self.snapshots.may_resize

    def _begin_to_load(self, loop: Loop) -> None:
        """Begin where all load what is saved; until something is, ranks can only start anew."""
        self.messages.open(self.launched.control)
        loop.updating = self._check_arrived
        if loop.checkpointer.loaded is not None:
            self._have_arrived(loop)
        else:
            self.active = True
            self.messages.watch()
            loop.checkpointer.on_first_save = self._say
        every = self.launched.memory_every
        where = f"the newest snapshot in memory: one is made every {every}" if every else "the newest checkpoint"
        loop.training.say(f"a killed rank will have all go back in their processes, to {where}")

    def note(self, loop: Loop) -> None:
        """Keep the rank's own state after the last forward pass of a step."""
        self._note(loop, loop.progress.step + 1)

    def updating(self) -> None:
        """Mark the weights as being of no step until `updated`.

        Raises DistNetworkError if the gradients are not what all ranks have computed together.
        """
        self.snapshots.copied()
        self._check_arrived()
        self.snapshots.updating = True

    def updated(self, loop: Loop, step_samples: int) -> None:
        """Keep the state after the update, or end if the training turns out not to be exact."""
        if not self.active:
            return
        if self.snapshots.has_drawn():
            self.end(loop, "the backward pass, or the optimizer, draws random numbers")
        if changing := self._plain.changing(model=loop.strategy.module, loss=loop.loss):
            self.end(loop, f"{changing} changes from step to step, and a new rank would not have it")
        if self.launched.in_place_unasked and self._pace.is_felt(time.monotonic()):
            self.end(loop, "what it takes would be felt")
        self._take_snapshot(loop, step_samples)
        self.snapshots.updating = False

    def step_ended(self, loop: Loop) -> None:
        """Seed the generators anew if the ranks have changed, before the step is saved."""
        if self.snapshots.resized:
            draw_anew(loop)
            self.snapshots.resized = False

    def step_over(self, loop: Loop) -> None:
        """Leave together with the other ranks if new ones wait to join."""
        if self.active and loop.checkpointer.all_regroup:
            loop.checkpointer.wait()
            raise dist.DistBackendError("other ranks wait to be met")

    def end(self, loop: Loop, why: str) -> None:
        """Stop keeping state: launch has to start all ranks anew from now on."""
        if self.active:
            self.active = False
            if self.snapshots.copies is None:  # else ranks of other nodes wait for its notes, if only to hear of none
                self.snapshots.let_go()
                loop.survivor = loop.updating = None
            self.messages.unwatch()
            self.wire.report(can_continue=0)
            self._say_not(loop, f"a killed rank will have all ranks started anew from now on: {why}")

    def close(self) -> None:
        """End with the training; what follows in the script finds ranks that are alike."""
        if self.active:
            self.active = False
            self.messages.unwatch()
            self.wire.report(can_continue=0)
        if self.member is not None:
            self.member.world = replace(self.member.world, anew=False)

    def _say_not(self, loop: Loop, text: str) -> None:
        """Log the text if the user asked for continuing in place."""
        if not self.launched.in_place_unasked:
            loop.training.say(text)

    def _take_snapshot(self, loop: Loop, step_samples: int | None) -> None:
        """Keep the shared state, and end if the script's own state cannot be had."""
        if not self.active:
            return
        try:
            with self._pace.noting():
                self.snapshots.take_snapshot(loop, step_samples)
        except Exception as error:  # noqa: BLE001 - of any kind
            self.end(loop, f"a state that is kept of each step cannot be had: {type(error).__name__}: {error}")

    def _note(self, loop: Loop, step: int) -> None:
        with self._pace.noting():
            fits = self.snapshots.note(loop, step, known=self.active)
        if not fits:
            self.end(loop, "what a rank has to note of a step takes too much room in memory")

    def _be_told(self, loop: Loop) -> None:
        """Listen to each step from now on."""
        loop.survivor, loop.updating, loop.checkpointer.would_regroup = self, self.updating, self._others_wait

    def _check_arrived(self) -> None:
        """Raise DistNetworkError if the update's input from other ranks was cut off."""
        if self.member is not None:
            made_here.check_arrived(self.member.world.device)

    def _say(self) -> None:
        snapshots = self.snapshots
        can = {"resizes": snapshots.resizes, "goes_back": snapshots.goes_back}
        self.wire.report(can_continue=self.launched.generation, **can)

    def _others_wait(self) -> bool:
        return self.active and self.messages.has_one_for_step_end

    # -- after a rank was killed

    def meet_anew(self, error: Exception, strategy: Strategy | None, loop: Loop | None) -> World:
        """Leave the step, or the meeting, and meet the other ranks again.

        Raises the error if it is not about another rank, or if launch sends no message. `strategy` is what there is of
        it, and is kept unless it is to be made anew.
        """
        while True:
            able = self._may_meet and (self.loads or strategy is not None)
            if not able or self.member is None or not self.messages.opened or not _is_of_peers(error):
                raise error
            self.messages.unwatch()
            made_here.cut()  # whoever waits for this rank leaves too
            patience_s = _WORD_UNASKED_S if self.launched.in_place_unasked else _WORD_S
            word = self.messages.wait(patience_s + self.launched.lease_s)
            if word is None:
                raise error
            if self.loads and loop is not None and self.active:
                self.snapshots.take_part()
            if loop is not None:
                self.was_at = loop.progress.step if self.active else self.was_at
                self.snapshots.validated = loop.progress.validated, loop.progress.values
                loop.checkpointer.abandon()
                self.snapshots.verified |= loop.checkpointer.verified
            self.active, self.arrives = False, True
            take_place(word)
            os.environ["LAUNCH_JOINS"] = "1"
            self.snapshots.launched = Launched.from_environment()
            try:
                world = self.member.meet_anew(self.messages.fileno())
                self.messages.watch()
                if self.loads or strategy is None:
                    clear_frames(error.__traceback__)  # they have the model that is to be made anew
                    return replace(world, anew=not self.loads)
                strategy.meet_anew(world)
            except RuntimeError as again:
                again.__context__ = None  # the one before it, of another meeting
                error, loop = again, None
            else:
                return world

    @property
    def _may_meet(self) -> bool:
        """Whether the ranks can meet again; in the middle of an update only by loading."""
        return (self.active or self.arrives) and (not self.snapshots.updating or self.loads)

    def arrive(self, loop: Loop) -> int | None:
        """Bring this rank to where the training goes on; return the step, or None if all load."""
        try:
            if self.loads and not self._may_be_handed(loop):
                return None
            arrived = arrive(loop, self.snapshots)
        except Exception as error:
            if _is_of_peers(error) or CANNOT in str(error):
                raise
            # Warm: it is no error of the user's, or is one of the next start too.
            raise cannot(f"{type(error).__name__}: {error}") from error
        if isinstance(arrived, str):
            self.goes_back_because = arrived
            return None
        step, self.step_samples = arrived
        return step

    def go_on(self, loop: Loop) -> None:
        """Continue after everything was restored."""
        self.messages.open(self.launched.control)
        self._be_told(loop)
        self.snapshots.go_on_from(loop, self.step_samples)
        self._add_verified(loop, loop.progress.step)
        self._have_arrived(loop)

    def have_loaded(self, loop: Loop) -> None:
        """Report where all went back to.

        Raises DistBackendError if nothing was saved: the surviving processes' objects are no longer as they began, so
        all have to start anew.
        """
        loaded = loop.checkpointer.loaded
        if loaded is None:
            why = f"{self.goes_back_because}; " if self.goes_back_because else ""
            raise cannot(f"{why}nothing was saved so far")
        self._add_verified(loop, loaded.step)
        lost = max(0, max(gathered(self.was_at, loop.training.world)) - loaded.step)
        where = "memory" if loaded.from_memory else "a checkpoint"
        why = f" ({self.goes_back_because})" if self.goes_back_because else ""
        again = f"done again: {lost} steps"
        if loop.training.world.is_first:
            self.wire.report(went_back_to=loaded.step, lost_steps=lost, why=self.goes_back_because)
        loop.training.say(f"goes on in place after step {loaded.step}, from {where}; {again}{why}")

    def _add_verified(self, loop: Loop, step: int) -> None:
        """Tell the new Checkpointer which checkpoints up to this step were verified."""
        loop.checkpointer.add_verified({one: finite for one, finite in self.snapshots.verified.items() if one <= step})

    def _have_arrived(self, loop: Loop) -> None:
        os.environ.pop("LAUNCH_JOINS", None)
        self.arrives, self.active, self.snapshots.updating = False, True, False
        self.messages.watch(loop.strategy.module.parameters(), unless=lambda: self.snapshots.updating)
        self._say()


def _is_of_peers(error: Exception) -> bool:
    """Return whether the error is about a lost rank, or was raised in handling such a one.

    Once launch has sent its message any error counts; others are the user's and raised at once.
    """
    told = _made_of(error)
    return not any(CANNOT in str(one) for one in told) and (made_here.given_up or any(map(_tells_of_a_loss, told)))


def _tells_of_a_loss(error: BaseException) -> bool:
    said, of_torch = str(error), isinstance(error, RuntimeError)
    return isinstance(error, dist.DistError) or (of_torch and (_OF_GLOO in said or _LOST in said))


def _made_of(error: BaseException) -> list[BaseException]:
    """Return the error and those in whose handling it was raised."""
    told, one = [error], error.__cause__ or error.__context__
    while one is not None and one not in told:
        told.append(one)
        one = one.__cause__ or one.__context__
    return told
