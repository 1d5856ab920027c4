"""Continue a training in its processes when a rank was killed, with `recovery: {mode: hot}` under launch.

    step k:  forward ─ rank state(k) ─ backward, update ─ snapshot(k) ─ logging, validation, saving ─ step k+1 ...
              what is this rank's alone                    the small shared state

When a rank is killed the others fail in an operation with it, leave the step, and wait for launch's message. For a node
that only fell silent the message comes first, and they cut the connections in which they would wait. They and the new
rank meet in new groups, agree on the newest step that some of them have done, send its state to the ranks that lack it,
restore their own, and continue right after its update. Gradients of an unfinished step are dropped. If one more rank is
killed meanwhile, launch sends another message and they meet once more. If continuing is impossible, the reason is
logged once, and launch restarts all ranks.

If a node is lost and not replaced, the remaining ranks end step k and continue as fewer: samples are dealt out to them
and their generators seeded as in a start on so many ranks from a checkpoint of step k, so that both give the same
numbers. Where ranks of one more node join, all leave together after step k.

If weights are sharded, the survivors rebuild their model in their processes. With hsdp another rank has the
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

from trainer.connections import group_connections
from trainer.loop.can_continue import Pace, PlainState, reasons
from trainer.loop.launch_messages import LaunchMessages
from trainer.loop.loop import Loop
from trainer.loop.rejoining import CANNOT, arrive, cannot, reseed_generators
from trainer.loop.settings import Settings
from trainer.loop.step_snapshots import StepSnapshots
from trainer.loop.sums import gathered
from trainer.recovery.control import become_rank
from trainer.recovery.copies import Copies
from trainer.strategies import PARTITIONED, Strategy
from trainer.wire import Launched, Wire
from trainer.world import Membership, World

log = logging.getLogger("trainer")
_MESSAGE_S = 20.0  # from a failed operation, or the end of a lease, to launch's message; without it the rank fails
_MESSAGE_BY_DEFAULT_S = 5.0  # where nobody was killed none comes, and nobody has asked to wait for it
_OF_GLOO = "/gloo/"  # in what its errors say: the place in its sources
_LOST = "another rank was lost"  # the message of a save group that has lost a rank


@dataclass(slots=True)
class Survivor:
    """Continues one rank's training in its process after other ranks were killed.

    `wire` reports to launch. `member` is the rank's membership in the process group, None if the ranks cannot meet
    again. `arriving`: this rank joins others that are in the middle of the training. `active`: launch may replace a
    killed rank. `step_samples` is the number of samples of the step to continue after (None: before the first step),
    `step_at_loss` the number of steps done when another rank was killed, and `reload_reason` why all ranks load a
    checkpoint or snapshot, or "" if they need not.
    """

    wire: Wire
    member: Membership | None
    arriving: bool  # this rank joins others that are in the middle of the training
    snapshots: StepSnapshots
    messages: LaunchMessages = field(default_factory=LaunchMessages)
    active: bool = False  # launch may replace a killed rank
    step_samples: int | None = None  # of the step to continue after; None: before the first step
    step_at_loss: int = 0  # the steps done when another rank was killed
    reload_reason: str = ""  # why all ranks load what was saved; empty if they need not
    _pace: Pace = field(default_factory=Pace)
    _plain: PlainState = field(default_factory=PlainState)

    @classmethod
    def of(cls, world: World, settings: Settings, *, made: bool) -> "Survivor":
        """Return a Survivor for this rank.

        `made` is True if the user gave a function that makes the model, and can make it again, instead of a model.
        """
        launched, loads = Launched.from_environment(), settings.strategy in PARTITIONED
        member = Membership.sole_user(world)
        arriving = world.rejoined and member is not None
        in_node = settings.strategy == "hsdp" and world.local_size % (settings.shard_size or world.local_size) == 0
        snapshots = StepSnapshots(launched, loads, has_replica=not loads, made=made, node_suffices=in_node or not loads)
        return cls(Wire(launched.progress), member, arriving, snapshots)

    @property
    def loads(self) -> bool:
        """Whether ranks divide the optimizer's state among them, as with zero1 and fsdp.

        If so, models are rebuilt when ranks reconnect, and all ranks may have to load a checkpoint or snapshot, which
        alone may have the state of a killed rank.
        """
        return self.snapshots.loads

    @property
    def launched(self) -> Launched:
        """The settings that launch gave this rank."""
        return self.snapshots.launched

    # -- in each step

    def begin(self, loop: Loop, settings: Settings, dataset: Any) -> None:
        """Prepare to continue in place, before the first step; launch may then replace a rank that is killed.

        Nothing is prepared if launch does not support it, or if this training cannot continue in place, which is
        logged. `dataset` is the training data.
        """
        launched = self.launched
        if self.active or (launched.control is None and not launched.rank_states_copied):
            return
        able, world = self._can_continue(loop, settings, dataset), loop.training.world
        copies_rank_states = self.snapshots.copies_rank_states
        if copies_rank_states:
            able = all(gathered(able, world))  # ranks that keep copies for each other begin together
        if not able or launched.control is None:
            self.snapshots.drop_rank_states()
            return
        if not self.snapshots.has_replica:
            self._begin_reloading(loop)
            return
        self.active = True
        self._listen(loop)
        if copies_rank_states:
            self.snapshots.copies = Copies(world)
        self._save_rank_state(loop, loop.progress.step)
        self.snapshots.await_copies()
        self._take_snapshot(loop, None)
        if self.active:
            self._activate(loop)

    def _can_continue(self, loop: Loop, settings: Settings, dataset: Any) -> bool:
        """Return whether the training can continue in place after a kill, and log a reason that prevents it.

        If another rank has the same parameters, so that a killed rank can get them, also open the pipe for launch's
        messages and the files for this rank's state; return False if that fails. Otherwise open nothing: the training
        continues by a checkpoint that all ranks load.
        """
        how = {"met_once": self.member is not None, "made": self.snapshots.made}
        why_not = partial(reasons, loop, settings, dataset, self.launched, **how)
        if self.loads:
            self.snapshots.has_replica = self._may_have_replica(loop) and not any(why_not(loads=False))
        if why := next(why_not(loads=not self.snapshots.has_replica), ""):
            self._log_refusal(loop, f"if a rank is killed, all ranks will be restarted: {why}")
            return False
        if self.launched.control is None or not self.snapshots.has_replica:
            return not self.snapshots.has_replica
        try:
            self.messages.open(self.launched.control)
            self.snapshots.begin(loop)
        except OSError as error:
            level = logging.DEBUG if self.launched.in_place_by_default else logging.WARNING
            log.log(level, "if a rank is killed, all ranks will be restarted: %s", error)
            return False
        return True

    def _may_have_replica(self, loop: Loop) -> bool:
        """Return whether another rank has the same parameters as this one, or may have later.

        It may if launch is allowed to continue with another number of ranks, as more ranks may bring such copies.
        """
        return bool(loop.strategy.copies) or self.snapshots.may_resize

    def _begin_reloading(self, loop: Loop) -> None:
        """Prepare for a kill, after which all ranks load the newest checkpoint or snapshot in their processes.

        Watch for launch's messages, and report once a checkpoint or snapshot exists that this rank can continue in this
        way. Until it has reported, launch restarts all ranks after a kill.
        """
        self.messages.open(self.launched.control)
        loop.updating = self._check_arrived
        if loop.checkpointer.loaded is not None:
            self._activate(loop)
        else:
            self.active = True
            self.messages.watch()
            loop.checkpointer.on_first_save = self._report_ability
        every = self.launched.memory_every
        where = f"the newest snapshot in memory (one every {every})" if every else "the newest checkpoint"
        loop.training.say(f"if a rank is killed, all ranks will reload {where}, without a restart")

    def save_rank_state(self, loop: Loop) -> None:
        """Save in memory, as this step's, the state that only this rank has, such as its random generators.

        A process that replaces this rank continues from it. The loop calls this after the last forward pass of each
        step. If the state does not fit in memory, that is reported to launch, and no more steps are saved.
        """
        self._save_rank_state(loop, loop.progress.step + 1)

    def updating(self) -> None:
        """Wait for the device's work, and until this step's rank states are copied between nodes; then begin an update.

        From then until `update_done`, the weights count as those of no step. Raises DistNetworkError if connections
        were cut, so that gradients may lack those of other ranks, and RuntimeError if the rank with which this one
        exchanges copies is gone.
        """
        self.snapshots.await_copies()
        self._check_arrived()
        self.snapshots.updating = True

    def update_done(self, loop: Loop, step_samples: int) -> None:
        """Save in memory, after an update, the state that is the same on all ranks.

        The step had `step_samples` samples over all ranks. If the training turns out to be unable to continue in place,
        that is reported to launch, and neither this step nor a later one is saved.
        """
        if not self.active:
            return
        if self.snapshots.has_drawn():
            self.end(loop, "the backward pass, or the optimizer, draws random numbers")
        if changing := self._plain.changing(model=loop.strategy.module, loss=loop.loss):
            self.end(loop, f"{changing} changes from step to step, and a new rank would lack its value")
        if self.launched.in_place_by_default and self._pace.count_step(time.monotonic()):
            self.end(loop, "saving the state of each step takes too much time")
        self._take_snapshot(loop, step_samples)
        self.snapshots.updating = False

    def before_save(self, loop: Loop) -> None:
        """Seed the random generators again if the number of ranks has changed.

        The seed follows from the setting `seed`, the rank and the step. The loop calls this once each time that
        training continues after a kill: before it saves the last step that was made, or at once if none was made. A
        training that loads this step then draws the same numbers.
        """
        if self.snapshots.resized:
            reseed_generators(loop)
            self.snapshots.resized = False

    def step_done(self, loop: Loop) -> None:
        """Raise DistBackendError to leave the step, if the ranks agreed in this step that new ranks wait to join.

        All ranks do so together. Before that, a save in progress is waited for.
        """
        if self.active and loop.checkpointer.all_regroup:
            loop.checkpointer.wait()
            raise dist.DistBackendError("new ranks wait to join")

    def end(self, loop: Loop, why: str) -> None:
        """Stop saving state, report to launch that this rank cannot continue in place any more, and log `why`.

        A rank of another node that keeps a copy of this rank's states gets an empty one in each later step.
        """
        if self.active:
            self.active = False
            if self.snapshots.copies is None:  # else ranks of other nodes wait for its state, even if there is none
                self.snapshots.drop_rank_states()
                loop.survivor = loop.updating = None
            self.messages.unwatch()
            self.wire.report(can_continue=0)
            self._log_refusal(loop, f"from now on, if a rank is killed, all ranks will be restarted: {why}")

    def close(self) -> None:
        """Report to launch that this rank no longer continues in place, as its training has ended.

        Launch then replaces no rank while the rest of the script runs.
        """
        if self.active:
            self.active = False
            self.messages.unwatch()
            self.wire.report(can_continue=0)
        if self.member is not None:
            self.member.world = replace(self.member.world, rejoined=False)

    def _log_refusal(self, loop: Loop, text: str) -> None:
        """Log `text`, why the training cannot continue in place, if the user chose recovery in place.

        Nothing is logged if the user chose no mode, and launch uses this one by default.
        """
        if not self.launched.in_place_by_default:
            loop.training.say(text)

    def _take_snapshot(self, loop: Loop, step_samples: int | None) -> None:
        """Copy, in memory, the state that all ranks share, from which the training continues if a rank is killed.

        If the script's state cannot be copied, no more states are saved, and launch is told that this rank cannot
        continue in its process. `step_samples` is the number of samples of the step, None before the first step.
        """
        if not self.active:
            return
        try:
            with self._pace.measuring():
                self.snapshots.take_snapshot(loop, step_samples)
        except Exception as error:  # noqa: BLE001 - of any kind
            self.end(loop, f"the state of a step cannot be copied: {type(error).__name__}: {error}")

    def _save_rank_state(self, loop: Loop, step: int) -> None:
        """Save the rank's own state of step `step`; stop saving, and tell launch, if it does not fit in memory."""
        with self._pace.measuring():
            fits = self.snapshots.save_rank_state(loop, step, known=self.active)
        if not fits:
            self.end(loop, "the state of a step does not fit in memory")

    def _listen(self, loop: Loop) -> None:
        """Register this Survivor as the loop's StepListener."""
        loop.survivor, loop.updating, loop.checkpointer.would_regroup = self, self.updating, self._has_joiners

    def _check_arrived(self) -> None:
        """Wait for the work queued on the device, so that all that other ranks sent has arrived.

        Raises DistNetworkError if connections to other ranks were cut, as their gradients may then be missing.
        """
        if self.member is not None:
            group_connections.check_arrived(self.member.world.device)

    def _report_ability(self) -> None:
        """Report to launch that this rank can continue in place."""
        snapshots = self.snapshots
        can = {"resizes": snapshots.resizes, "goes_back": snapshots.goes_back}
        self.wire.report(can_continue=self.launched.generation, **can)

    def _has_joiners(self) -> bool:
        """Return whether launch has sent the message that new ranks wait to join."""
        return self.active and self.messages.has_one_for_step_end

    # -- after a rank was killed

    def rejoin(self, error: Exception, strategy: Strategy | None, loop: Loop | None) -> World:
        """Cut the connections, wait for launch's message, and reconnect with the other ranks; return the new world.

        `error` is the error that ended the step, or the last attempt to reconnect: it is raised again if it is not
        about another rank, if launch sends no message, or if this rank cannot continue in place. `strategy` is the
        strategy that was built, or None; it is kept in the new process groups unless models have to be rebuilt. `loop`
        is None if the error came before there was one.
        """
        while True:
            able = self._may_meet and (self.loads or strategy is not None)
            if not able or self.member is None or not self.messages.opened or not _is_about_lost_rank(error):
                raise error
            self.messages.unwatch()
            group_connections.cut()  # ranks that wait for this one leave too
            patience_s = _MESSAGE_BY_DEFAULT_S if self.launched.in_place_by_default else _MESSAGE_S
            message = self.messages.wait(patience_s + self.launched.lease_s)
            if message is None:
                raise error
            if self.loads and loop is not None and self.active:
                self.snapshots.keep_part()
            if loop is not None:
                self.step_at_loss = loop.progress.step if self.active else self.step_at_loss
                self.snapshots.validated = loop.progress.validated, loop.progress.values
                loop.checkpointer.abandon()
                self.snapshots.verified |= loop.checkpointer.verified
            self.active, self.arriving = False, True
            become_rank(message)
            os.environ["LAUNCH_JOINS"] = "1"
            self.snapshots.launched = Launched.from_environment()
            try:
                world = self.member.rejoin(self.messages.fileno())
                self.messages.watch()
                if self.loads or strategy is None:
                    clear_frames(error.__traceback__)  # they have the model that is to be rebuilt
                    return replace(world, rejoined=not self.loads)
                strategy.rejoin(world)
            except RuntimeError as again:
                again.__context__ = None  # the one before it, of another meeting
                error, loop = again, None
            else:
                return world

    @property
    def _may_meet(self) -> bool:
        """Whether this rank can reconnect with the other ranks to continue with them.

        During an update it cannot, as its weights belong to no step, unless all ranks rebuild their models anyway when
        they reconnect (`loads`).
        """
        return (self.active or self.arriving) and (not self.snapshots.updating or self.loads)

    def arrive(self, loop: Loop) -> int | None:
        """Bring this rank to the step from which the training continues; all ranks call it once reconnected.

        Returns that step. Returns None if all ranks have to load a checkpoint or snapshot, which the caller then does.
        Raises an error about another lost rank as it is, so that ranks can reconnect once more. Raises any other as a
        DistBackendError, upon which launch restarts the ranks in new processes.
        """
        try:
            if self.loads and not self._may_have_replica(loop):
                return None
            arrived = arrive(loop, self.snapshots)
        except Exception as error:
            if _is_about_lost_rank(error) or CANNOT in str(error):
                raise
            # Warm: it is no error of the user's, or is one of the next start too.
            raise cannot(f"{type(error).__name__}: {error}") from error
        if isinstance(arrived, str):
            self.reload_reason = arrived
            return None
        step, self.step_samples = arrived
        return step

    def go_on(self, loop: Loop) -> None:
        """Save the restored state as that of the newest step, and report that this rank can continue in place again.

        Call it once everything has been restored; the loop then trains on.
        """
        self.messages.open(self.launched.control)
        self._listen(loop)
        self.snapshots.continue_from(loop, self.step_samples)
        self._add_verified(loop, loop.progress.step)
        self._activate(loop)

    def report_reload(self, loop: Loop) -> None:
        """Log the checkpoint or snapshot from which all ranks continue; all ranks call it.

        Rank 0 also reports to launch how many steps are done again. Raises DistBackendError if nothing was saved: the
        surviving processes' objects are no longer as they began, so all ranks have to be restarted.
        """
        loaded = loop.checkpointer.loaded
        if loaded is None:
            why = f"{self.reload_reason}; " if self.reload_reason else ""
            raise cannot(f"{why}nothing was saved so far")
        self._add_verified(loop, loaded.step)
        lost = max(0, max(gathered(self.step_at_loss, loop.training.world)) - loaded.step)
        where = "memory" if loaded.from_memory else "a checkpoint"
        why = f" ({self.reload_reason})" if self.reload_reason else ""
        again = f"done again: {lost} steps"
        if loop.training.world.is_first:
            self.wire.report(went_back_to=loaded.step, lost_steps=lost, why=self.reload_reason)
        loop.training.say(f"continues in place after step {loaded.step}, from {where}; {again}{why}")

    def _add_verified(self, loop: Loop, step: int) -> None:
        """Tell the loop's new Checkpointer which checkpoints up to `step` were verified before ranks reconnected.

        This process wrote or read them whole; as verified they count among those to keep.
        """
        loop.checkpointer.add_verified({one: finite for one, finite in self.snapshots.verified.items() if one <= step})

    def _activate(self, loop: Loop) -> None:
        """Watch for launch's messages, and report that this rank can continue in place."""
        os.environ.pop("LAUNCH_JOINS", None)
        self.arriving, self.active, self.snapshots.updating = False, True, False
        self.messages.watch(loop.strategy.module.parameters(), unless=lambda: self.snapshots.updating)
        self._report_ability()


def _is_about_lost_rank(error: Exception) -> bool:
    """Return whether the error is one that torch or gloo raises for a lost rank, or was raised while one was handled.

    After launch has sent this rank the message to reconnect, any error counts, except one which says that the training
    cannot continue in place. Other errors are the user's.
    """
    chain = _chain_of(error)
    return not any(CANNOT in str(one) for one in chain) and (
        group_connections.given_up or any(map(_tells_of_loss, chain))
    )


def _tells_of_loss(error: BaseException) -> bool:
    """Return whether `error` itself is of a kind that torch or gloo raises when another rank is lost."""
    text, of_torch = str(error), isinstance(error, RuntimeError)
    return isinstance(error, dist.DistError) or (of_torch and (_OF_GLOO in text or _LOST in text))


def _chain_of(error: BaseException) -> list[BaseException]:
    """Return a list: the error, then the error in whose handling it was raised, and so on to the first."""
    chain, one = [error], error.__cause__ or error.__context__
    while one is not None and one not in chain:
        chain.append(one)
        one = one.__cause__ or one.__context__
    return chain
