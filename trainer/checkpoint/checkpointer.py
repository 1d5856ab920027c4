"""Checkpointer: save and exactly resume a training loop with four calls: load, after_step, finish and close."""

import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Self

from torch import Tensor, nn
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.optim import Optimizer

from trainer.checkpoint.contents import Stateful, Subjects, gather
from trainer.checkpoint.copy_lag import CopyLag
from trainer.checkpoint.fingerprint import fingerprint_together
from trainer.checkpoint.memory import MemoryTier, open_memory_tier
from trainer.checkpoint.newest import NewestState
from trainer.checkpoint.save_group import SaveGroup, disk_leaders
from trainer.checkpoint.saving import CheckpointDirectory, Outcome, Saver, try_take_over
from trainer.checkpoint_files import catalog
from trainer.checkpoint_files.catalog import Entry
from trainer.checkpoint_files.fence import FencingToken
from trainer.checkpoint_files.layout import folder_name
from trainer.checkpoint_files.manifest import Value
from trainer.errors import BadSettings, CheckpointDamaged, Fenced, SaveFailed, TrainerError
from trainer.stopping import StopRequest, Votes
from trainer.wire import Every, Launched, Wire
from trainer.world import World, cpu_group, join

if TYPE_CHECKING:
    from trainer.checkpoint.loading import Loaded

log = logging.getLogger("trainer")
_MOST_FAILURES = 3  # saves in a row that fail before there is no point in training on
_KEEP = 3


class Checkpointer:
    """Saves and resumes the state of a training on any number of ranks.

    All ranks make the same calls. `state` holds objects whose state is the same for all (scheduler, scaler, data) and
    is taken from rank 0; `per_rank` holds those whose state is saved for each rank. The random generators are always
    saved.
    """

    def __init__(
        self,
        folder: str | Path | None = None,
        *,
        model: nn.Module | Mapping[str, nn.Module],
        optimizer: Optimizer | Mapping[str, Optimizer] | None = None,
        state: Mapping[str, Stateful] | None = None,
        per_rank: Mapping[str, Stateful] | None = None,
        averages: Mapping[str, Tensor] | None = None,
        every: str | None = None,
        keep: int | None = None,
        total_steps: int | None = None,
        world: World | None = None,
        asynchronous: bool = True,
        in_memory: bool = True,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        launched = Launched.from_environment()
        if not in_memory:
            launched = replace(launched, memory_dir=None)
        self.folder = Path(folder or launched.checkpoint_dir or "checkpoints")
        self.total_steps = total_steps
        self.loaded: Loaded | None = None
        self.would_regroup: Callable[[], bool] = lambda: False  # whether the first rank would, after a step
        self.all_regroup = False  # as agreed at the last vote
        self.on_first_save: Callable[[], None] | None = None  # on disk or in memory; called by the writing thread
        self._launched = launched
        models = {"": model} if isinstance(model, nn.Module) else model
        parameters = (parameter for model in models.values() for parameter in model.parameters())
        self._world = world or join(device=next((parameter.device for parameter in parameters), None))
        self._every = Every.parse(launched.checkpoint_every if every is None else every)
        self._copy_lag = Every.parse(launched.checkpoint_copy_lag, "checkpoint copy_lag")
        self._keep = next(number for number in (keep, launched.checkpoint_keep, _KEEP) if number is not None)
        if self._keep < 1:
            raise BadSettings(f"keep: expected at least 1 checkpoint, got {self._keep}")
        self._subjects = Subjects(
            models=models,
            optimizers={} if optimizer is None else {"": optimizer} if isinstance(optimizer, Optimizer) else optimizer,
            shared=state or {},
            per_rank=per_rank or {},
            averages=averages or {},
        )
        if self._world.is_first:
            _warn_of_own_state(self._subjects)
        self._asynchronous, self._now = asynchronous, now
        self._save_group: SaveGroup  # made by _open
        self._votes = Votes(self._world.control, now)
        self._wire = Wire(launched.progress)
        self._stop = StopRequest()
        self._stop.listen()
        self._saver: Saver | None = None
        self._memory: MemoryTier | None = None
        self._saved_step = self._at = 0
        self._prepared = False
        self._leaving = False  # this is the last save: launch sees to its second copies
        self._continued_at: int | None = None  # after a step whose state came from other ranks, or was here
        self._verified_before: dict[int, bool] = {}  # from before the ranks met again
        self._saved_at = self._remembered_at = now()

    # -- the four calls

    def load(self) -> int:
        """Load the newest complete checkpoint into the objects; return its step, or 0 if there is none.

        All ranks call it. Raises Fenced if newer processes of the run own the folder. Raises TrainerError if the folder
        cannot be used, if the checkpoint is of another model, or if a damaged checkpoint was read into the objects in
        part and no other can be loaded.
        """
        self._wire.take_back_done()  # reported by another training of this script
        saver = self._open()
        self.loaded = NewestState(self.folder, self._subjects, self._world, self._save_group).load(self._memory)
        step = self.loaded.step if self.loaded else 0
        if self._memory is not None:
            self._memory.remove_after(step)
        if self.loaded is not None and not self.loaded.from_memory:
            saver.add_verified(step, finite=self.loaded.finite)
            self._saved_step = step
            self._wire.report(checkpoint=step)
        self._saved_at = self._remembered_at = self._now()
        return step

    def _open(self) -> Saver:
        """Claim the checkpoint folder and the folder for snapshots in memory, and return a Saver; all ranks call it.

        Claiming keeps earlier processes of the same run from writing there. Raises Fenced if newer processes of the run
        have claimed either, and TrainerError if the checkpoint folder cannot be used.
        """
        self._save_group = _all_ranks_group(self._world, separate_disks=self._launched.disks_apart)
        token = self._take_over()
        directory = CheckpointDirectory(self.folder, token, self._keep, self._launched.run_dir)
        self._saver = Saver(
            directory,
            self._save_group,
            self._world,
            asynchronous=self._asynchronous,
            on_commit=partial(self._report_saved, kind="checkpoint"),
            while_waiting=lambda: self.still_at(self._at),
            copy_lag=CopyLag(self._copy_lag) if self._copy_lag != Every() else None,
            is_ending=lambda: self._stop.asked or self._leaving,
        )
        self.add_verified(self._verified_before)
        self._memory = open_memory_tier(
            self._launched,
            self._world,
            self._save_group,
            asynchronous=self._asynchronous,
            on_commit=partial(self._report_saved, kind="remembered"),
        )
        return self._saver

    def continue_from(self, step: int) -> None:
        """Continue from `step`, whose state other ranks have provided, instead of calling `load`.

        Usually nothing is communicated. The checkpoint folder has to be claimed, so that earlier processes of the run
        cannot write there any more; that is done in the next `save` or in `after_step` of the next step, whichever
        comes first. If snapshots in memory are on, it is done here: all ranks wait for each other, and Fenced, if newer
        processes have the folder, or SaveFailed may be raised.
        """
        self._at = self._continued_at = step
        self._saved_at = self._remembered_at = self._now()
        if self._launched.memory_every:
            self._open_saver()

    @property
    def verified(self) -> dict[int, bool]:
        """Whether all weights are finite, by step, for the checkpoints that this rank verified or helped to write."""
        return self._verified_before | (self._saver.verified if self._saver is not None else {})

    def add_verified(self, known: Mapping[int, bool]) -> None:
        """Add the checkpoints that an earlier Checkpointer of this process has verified, as if verified by this one.

        `known`, the earlier one's `verified`, says for each step whether the checkpoint's weights are finite. Only
        verified checkpoints count among those to keep, so older ones can be deleted without verifying these again.
        """
        self._verified_before = dict(known)
        if self._saver is not None:
            for step, finite in known.items():
                self._saver.add_verified(step, finite=finite)

    def abandon(self) -> None:
        """Give up saves in progress after the loss of a rank, which breaks their process groups: wait up to 0.2 s each.

        The thread of such a save may stay blocked until the process exits.
        """
        for saver in (self._saver, self._memory.saver if self._memory else None):
            if saver is not None:
                saver.abandon()

    def after_step(self, step: int, info: Mapping[str, Value] | None = None) -> bool:
        """Save if that is due; return True, after trying to save, if a stop was requested: the script then has to exit.

        A save is due every so many steps or seconds as the checkpointer was made with. All ranks call it after every
        optimizer step. `info` are values for the checkpoint's manifest. A script that exits with code 75 is started
        again by launch. Raises on all ranks: Fenced if newer processes of the run own the folder, and SaveFailed after
        three failed saves in a row or if the folder cannot be claimed, and TrainerError for state that cannot be saved.
        """
        self.still_at(step)
        if step != self._continued_at:
            self._open_saver()
            if not self._prepared:
                self._prepare()
        save = self._every.is_due(step)
        remember = self._memory is not None and self._memory.every.is_due(step)
        if self._votes.due(step):
            stop, late, stale, fenced, failed, self.all_regroup = self._votes.vote(step, self._own_votes())
            if fenced or failed:
                self._give_up()
            if stop:
                self._wire.report(asked_to_stop=True)  # else exit code 75 would be an error of the script's
                if not self._save_surely(step, info):
                    log.warning("step %d could not be saved: the next start resumes from an older one", step)
                return True
            save, remember = save or late, remember or stale
        if save:
            self.save(step, info)
        elif remember:
            self._remember(step, info)
        return False

    def finish(self, step: int, info: Mapping[str, Value] | None = None, *, fingerprint: bool = True) -> str:
        """Save the end of the training, report to launch that the work is done, and return the state's fingerprint.

        All ranks call it; it calls `close` at the end. `info` are values for the checkpoint's manifest. For the
        fingerprint, a digest of the model and optimizer, the ranks read the saved checkpoint and check its bytes; with
        `fingerprint` False they do not, and "" is returned. Raises on all ranks: Fenced if newer processes
        of the run own the folder, SaveFailed after three failed saves, and CheckpointDamaged if the bytes on disk are
        not those that were written.
        """
        if not self._save_surely(step, info):
            self._give_up()
        still_here = partial(self.still_at, step)
        mark = fingerprint_together(self._entry(step), self._save_group, still_here) if fingerprint else ""
        total = {} if self.total_steps is None else {"total_steps": self.total_steps}
        self._wire.report(step=step, **total, **({"fingerprint": mark} if mark and self._save_group.is_first else {}))
        self._wire.report_done()
        self.close()
        return mark

    def close(self) -> None:
        """Wait for the save that is being written, restore the earlier signal handlers, and disconnect from launch."""
        for saver in (self._saver, self._memory.saver if self._memory else None):
            if saver is not None:
                saver.wait()
        self._stop.unlisten()
        self._wire.close()

    # -- more of them

    def save(
        self, step: int, info: Mapping[str, Value] | None = None, *, wait: bool = False, best: bool = False
    ) -> None:
        """Save now, even if no save is due; a step that is saved already is not written again. All ranks call it.

        An earlier save is waited for. With `best`, this checkpoint replaces the previous best one. With `wait`, return
        only once the save has ended; otherwise it is written in the background. `info` are values for the manifest. A
        save that fails is only logged, and reported by `wait`.

        Raises TrainerError for state that cannot be saved. If these ranks have not claimed the checkpoint folder yet,
        they do it first, which raises Fenced if newer processes of the run own it, and SaveFailed if it cannot be used.
        """
        saver = self._open_saver()
        if step == self._saved_step:
            if best:
                self._keep_best(step, info or {})
        else:
            saver.save(step, gather(self._subjects, self._world), info or {}, best=best)
            self._saved_step = step
            self._saved_at = self._remembered_at = self._now()
        if wait:
            self.wait()

    def wait(self) -> Outcome | None:
        """Wait for the last save and return how it ended, or None if there was none."""
        outcome = self._saver.wait() if self._saver is not None else None
        if outcome is not None and outcome.path is None and outcome.step == self._saved_step:
            self._saved_step = 0
        return outcome

    def still_at(self, step: int) -> None:
        """Report `step` again during long work between two steps, so that launch does not take the rank for hung."""
        self._at = step
        self._wire.report_step(step, self.total_steps)

    def ask_to_stop(self) -> None:
        """Ask the training to stop, as a SIGTERM to this rank would; one rank is enough.

        `after_step` then returns True on all ranks, after the same step.
        """
        self._stop.ask()

    @property
    def subjects(self) -> Subjects:
        """The objects of the training whose state is saved: models, optimizers and others."""
        return self._subjects

    @property
    def stop_asked(self) -> bool:
        """Whether this rank was asked to stop; the other ranks learn of it in their next vote, within `after_step`."""
        return self._stop.asked

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            self.close()
        else:
            self._stop.unlisten()  # code that catches the error can be ended by a signal again

    # -- inside

    def _open_saver(self) -> Saver:
        """Return the Saver, which the first call makes: all ranks make that call together.

        That call claims the folder, so that older processes of the run cannot save there any more.

        Raises SaveFailed if the folder cannot be used, Fenced if newer processes of the run own it, and RuntimeError if
        neither `load` nor `continue_from` was called.
        """
        if self._saver is not None:
            return self._saver
        step = self._continued_at
        if step is None:
            raise RuntimeError("Checkpointer: load() comes first, in a new training too")
        try:
            saver = self._open()
        except TrainerError as error:  # of a folder that was there a moment ago: no fault of the user's
            raise SaveFailed(str(error)) from error
        finite = self._save_group.broadcast(self._is_finite_on_disk(step) if self._save_group.is_first else None)
        if finite is not None:
            saver.add_verified(step, finite=finite)
            self._saved_step = step
        return saver

    def _entry(self, step: int) -> Entry:
        """Return the Entry (kind, step and folder) of this step's checkpoint, even if there is no such folder.

        The kind is always "step", a checkpoint to resume from, not that of the best model.
        """
        return Entry("step", step, self.folder / folder_name(step))

    def _take_over(self) -> FencingToken:
        """Claim the checkpoint directory on every disk and return this disk's fencing token; all ranks call it.

        Raises on all ranks: Fenced if newer processes of the run own the directory, TrainerError if it cannot be used.
        """
        launched = self._launched
        mine: tuple[FencingToken | None, str, bool] = (None, "", False)
        if self._save_group.acts_for_disk:
            mine = try_take_over(self.folder, launched.attempt if launched.run_dir else None, launched.generation)
        results = self._save_group.all_gather(mine)
        for _, problem, fenced in results:
            if fenced:
                raise Fenced(problem)
        token, *_ = results[self._save_group.disk_leader]
        problems = [problem for _, problem, _ in results if problem]
        if token is None or problems:
            raise TrainerError(f"{self.folder}: expected a folder for checkpoints: {problems[0]}")
        return token

    def _is_finite_on_disk(self, step: int) -> bool | None:
        """Return whether this step's weights are finite by its checkpoint's manifest; None if none can be read."""
        try:
            return catalog.read_manifest(self._entry(step)).finite if step in catalog.steps(self.folder) else None
        except (CheckpointDamaged, OSError):
            return None

    def _save_surely(self, step: int, info: Mapping[str, Value] | None) -> bool:
        """Save and wait, up to three times if saves fail; return whether one succeeded.

        All ranks call it. Raises Fenced if newer processes of the run own the folder. `info` are values for the
        checkpoint's manifest. Raises SaveFailed if the folder cannot be claimed, and TrainerError for state that cannot
        be saved.
        """
        self._leaving = True
        for _ in range(_MOST_FAILURES):
            self.save(step, info)
            outcome = self.wait()
            if self._saved_step == step:
                return True
            if outcome is not None and outcome.fenced:
                self._give_up()
        return False

    def _prepare(self) -> None:
        """Plan the first save and allocate its memory, after the first step; all ranks call it.

        Raises TrainerError for state that cannot be saved, now and not only at the first save.
        """
        self._prepared = True
        contents = gather(self._subjects, self._world)
        if self._asynchronous and self._every != Every():
            self._open_saver().reserve(contents)

    def _remember(self, step: int, info: Mapping[str, Value] | None) -> None:
        """Write a snapshot of `step` into the node's memory, with `info` for its manifest; all ranks call it.

        Nothing is written if snapshots are disabled or do not fit, or while the best checkpoint is still being written.
        """
        memory = self._memory
        if memory is not None and memory.enabled is not False:
            # Over the group of the votes: a save to disk may be using that of the saver.
            voters = SaveGroup(self._world.control, self._save_group.ranks, self._save_group.me)
            if self._open_saver().is_best_pending(voters):
                return
            contents = gather(self._subjects, self._world, brings_shared=memory.node.is_first)
            if memory.fits(contents, voters):
                memory.saver.save(step, contents, info or {})
        self._remembered_at = self._now()

    def _own_votes(self) -> list[bool]:
        """Return this rank's votes after a step, in the order in which `after_step` unpacks them.

        They are: stop requested, the time for a save on disk has come, the same for a save in memory, the last save was
        fenced (newer processes own the directory), three saves in a row failed, new ranks wait to join. The second,
        third and last are true on rank 0 alone, so that one clock counts.
        """
        now, saver = self._now(), self._saver
        seconds = self._every.seconds
        memory_s = self._memory.every.seconds if self._memory else None
        first = self._world.is_first  # one clock counts
        last, failures, busy = (saver.last, saver.failures, saver.busy) if saver is not None else (None, 0, False)
        return [
            self._stop.asked,
            first and seconds is not None and now - self._saved_at >= seconds,
            first and memory_s is not None and now - self._remembered_at >= memory_s,
            last is not None and last.fenced,
            failures >= _MOST_FAILURES,
            first and not busy and self.would_regroup(),
        ]

    def _give_up(self) -> None:
        """Wait for the last save, which failed, and raise the error that ends the training.

        Raises Fenced if it failed because newer processes of the run own the folder. Else raises SaveFailed: three
        saves in a row have failed.
        """
        outcome = self._open_saver().wait()
        problem = outcome.problem if outcome else "nothing was saved"
        if outcome is not None and outcome.fenced:
            log.warning("%s", problem)
            raise Fenced(problem)
        raise SaveFailed(
            f"{self.folder}: {_MOST_FAILURES} saves in a row have failed, the last one with: {problem}",
            outcome.failed_rank if outcome else None,
        )

    def _keep_best(self, step: int, info: Mapping[str, Value]) -> None:
        """Keep the committed checkpoint of this step as the best one, unless its save failed; all ranks call it.

        The save is waited for. `info` is added to its manifest. If keeping it is impossible, a warning is logged.
        """
        outcome = self._open_saver().wait()
        if outcome is None or outcome.path is not None or outcome.step != step:
            try:
                self._open_saver().keep_best(step, info)
            except (Fenced, OSError, CheckpointDamaged) as error:  # fenced: the next save reports it to all
                log.warning("the best checkpoint could not be saved separately: %s", error)

    def _report_saved(self, step: int, kind: str) -> None:
        """Report to launch that `step` is saved, as `kind`: "checkpoint" on disk or "remembered" in memory.

        The first time, `on_first_save` is called as well.
        """
        self._wire.report(**{kind: step})
        tell, self.on_first_save = self.on_first_save, None
        if tell is not None:
            tell()


def _warn_of_own_state(subjects: Subjects) -> None:
    """Warn of optimizers with a state_dict() of their own, of which only `.state` and `.param_groups` are saved."""
    for key, optimizer in subjects.optimizers.items():
        own = type(optimizer).state_dict is not Optimizer.state_dict
        if own and not isinstance(optimizer, ZeroRedundancyOptimizer):
            log.warning(
                "%s%s has a state_dict() of its own: only its .state and .param_groups are saved\n"
                "hint: put the optimizer itself in `state` or `per_rank` as well if there is more to it",
                type(optimizer).__name__, f" ({key})" if key else "",
            )  # fmt: skip


def _all_ranks_group(world: World, *, separate_disks: bool) -> SaveGroup:
    """Return a SaveGroup of all ranks with a new gloo process group of its own; all ranks call it.

    With `separate_disks` each node has its own disk, on which the node's first rank alone commits and removes
    checkpoints; else rank 0 does so on the only one.
    """
    leaders = disk_leaders(world) if separate_disks else None
    if world.control is None:
        return SaveGroup(None, (0,), 0, leaders)
    return SaveGroup(cpu_group(), tuple(range(world.size)), world.rank, leaders)
