"""Checkpointer: what a training loop needs to be resumed exactly, in four calls: load, after_step, finish, close."""

import logging
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Self

import torch
from torch import Tensor, nn
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.optim import Optimizer

from trainer.checkpoint.contents import Stateful, Subjects, gather
from trainer.checkpoint.copy_lag import CopyLag
from trainer.checkpoint.fingerprint import fingerprint_together
from trainer.checkpoint.loading import Loaded, Reader, read_patiently
from trainer.checkpoint.memory import MemoryTier, open_memory_tier
from trainer.checkpoint.saving import Outcome, Saver, Shelf
from trainer.checkpoint.team import Team, disk_leaders
from trainer.checkpoint_files import catalog, commit
from trainer.checkpoint_files.catalog import Entry
from trainer.checkpoint_files.durable import make_folder
from trainer.checkpoint_files.fence import Claim
from trainer.checkpoint_files.layout import folder_name
from trainer.checkpoint_files.manifest import Manifest, Value
from trainer.checkpoint_files.whole import whole
from trainer.errors import BadSettings, CheckpointDamaged, CheckpointPartial, Fenced, SaveFailed, TrainerError
from trainer.stopping import StopRequest, Votes
from trainer.wire import Every, Launched, Wire
from trainer.world import World, cpu_group, join

log = logging.getLogger("trainer")
_MOST_FAILURES = 3  # saves in a row that fail before there is no point in training on
_KEEP = 3
# Another disk may have copies of what was set aside here.
_NONE_ON_ALL_DISKS = "on all disks; the next start looks for copies of them"
_NONE_AND_SPOILT = "any more, and parts of a damaged one are in the model; the next start begins anew"


class Checkpointer:
    """Saves and resumes the state of a training on any number of ranks.

    All ranks make the same calls. `state` holds objects whose state is the same for all (scheduler, scaler, data) and
    is taken from rank 0; `per_rank` holds those whose state is kept for each rank. The random generators are always
    kept.
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
        self.leaves_for_others: Callable[[], bool] = lambda: False  # whether the first rank would, after a step
        self.all_leave = False  # as all have heard at their last vote
        self.when_first_saved: Callable[[], None] | None = None  # on disk, or in memory; called by who writes it
        self._launched = launched
        models = {"": model} if isinstance(model, nn.Module) else model
        self._world = world or join(device=_device_of(models))
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
        self._team: Team  # with the shelves
        self._votes = Votes(self._world.control, now)
        self._wire = Wire(launched.progress)
        self._stop = StopRequest()
        self._stop.listen()
        self._saver: Saver | None = None
        self._memory: MemoryTier | None = None
        self._saved_step = self._at = 0
        self._best_under_way = False
        self._prepared = False
        self._leaving = False  # this is the last save: launch sees to its second copies
        self._goes_on_at: int | None = None  # after a step whose state came from other ranks, or was here
        self._believed: dict[int, bool] = {}  # from before the ranks met anew
        self._spoilt = False  # a damaged checkpoint was read into the objects: they are no longer what they began as
        self._saved_at = self._remembered_at = now()

    # -- the four calls

    def load(self) -> int:
        """Put the newest whole state into the objects; return its step, or 0 if there is none. Raises Fenced."""
        self._wire.take_back_done()  # said by another training of this script
        saver = self._open_shelves()
        self.loaded = self._load_from_memory(self._newest_on_disk()) or self._load_from_disk()
        step = self.loaded.step if self.loaded else 0
        if self._memory is not None:
            self._memory.forget_after(step)
        if self.loaded is not None and not self.loaded.from_memory:
            saver.believe(step, finite=self.loaded.finite)
            self._saved_step = step
            self._wire.report(checkpoint=step)
        self._saved_at = self._remembered_at = self._now()
        return step

    def _open_shelves(self) -> Saver:
        """Take over the checkpoint directory and the memory tier for this start; all ranks call it."""
        self._team = _team(self._world, apart=self._launched.disks_apart)
        claim = self._take_over()
        shelf = Shelf(self.folder, claim, self._keep, self._launched.run_dir)
        self._saver = Saver(
            shelf,
            self._team,
            self._world,
            asynchronous=self._asynchronous,
            on_commit=self._committed,
            while_waiting=lambda: self.still_at(self._at),
            copy_lag=CopyLag(self._copy_lag) if self._copy_lag != Every() else None,
            in_a_hurry=lambda: self._stop.asked or self._leaving,
        )
        self.believe(self._believed)
        self._memory = open_memory_tier(
            self._launched, self._world, self._team, asynchronous=self._asynchronous, on_commit=self._remembered
        )
        return self._saver

    def go_on(self, step: int) -> None:
        """Go on from `step`, whose state other ranks have provided, instead of calling `load`.

        The folder is taken over with the next save, or after the next step, since all ranks wait for the first one.
        Snapshots in memory are made as before.
        """
        self._at = self._goes_on_at = step
        self._saved_at = self._remembered_at = self._now()
        if self._launched.memory_every:
            self._opened()

    @property
    def believed(self) -> dict[int, bool]:
        """The steps that this rank has verified or helped to write, and whether their weights are finite."""
        return self._believed | (self._saver.believed if self._saver is not None else {})

    def believe(self, known: Mapping[int, bool]) -> None:
        """Add what an earlier `Checkpointer` of this process knew, so that older checkpoints can be deleted sooner."""
        self._believed = dict(known)
        if self._saver is not None:
            for step, finite in known.items():
                self._saver.believe(step, finite=finite)

    def abandon(self) -> None:
        """Stop what is being written, as its process groups are broken, without waiting."""
        for saver in (self._saver, self._memory.saver if self._memory else None):
            if saver is not None:
                saver.abandon()

    def after_step(self, step: int, info: Mapping[str, Value] | None = None) -> bool:
        """Save if it is time to; return True once all is saved after a request to stop.

        Call it after every optimizer step. A script that then exits with code 75 is started again. Raises Fenced and
        SaveFailed.
        """
        self.still_at(step)
        if step != self._goes_on_at:
            self._opened()
            if not self._prepared:
                self._prepare()
        save = self._every.steps is not None and step % self._every.steps == 0
        remember = self._memory is not None and _multiple(step, self._memory.every)
        if self._votes.due(step):
            stop, late, stale, fenced, failed, self.all_leave = self._votes.vote(step, self._flags())
            if fenced or failed:
                self._give_up()
            if stop:
                self._wire.report(asked_to_stop=True)  # else exit code 75 would be an error of the script's
                if not self._save_surely(step, info):
                    log.warning("step %d could not be saved: the next start goes on from an older one", step)
                return True
            save, remember = save or late, remember or stale
        if save:
            self.save(step, info)
        elif remember:
            self._remember(step, info)
        return False

    def finish(self, step: int, info: Mapping[str, Value] | None = None, *, fingerprint: bool = True) -> str:
        """Save the end of the training, report that the work is done, and return its fingerprint.

        With `fingerprint` False the ranks do not read and compare the whole state once more, and "" is returned. Raises
        SaveFailed.
        """
        if not self._save_surely(step, info):
            self._give_up()
        still_here = partial(self.still_at, step)
        mark = fingerprint_together(self._entry(step), self._team, still_here) if fingerprint else ""
        total = {} if self.total_steps is None else {"total_steps": self.total_steps}
        self._wire.report(step=step, **total, **({"fingerprint": mark} if mark and self._team.is_first else {}))
        self._wire.report_done()
        self.close()
        return mark

    def close(self) -> None:
        """Wait for what is being written, and handle signals no more."""
        for saver in (self._saver, self._memory.saver if self._memory else None):
            if saver is not None:
                saver.wait()
        self._stop.unlisten()
        self._wire.close()

    # -- more of them

    def save(
        self, step: int, info: Mapping[str, Value] | None = None, *, wait: bool = False, best: bool = False
    ) -> None:
        """Save now, whatever the interval; `best` keeps this one in place of the previous best."""
        saver = self._opened()
        if step == self._saved_step:
            if best:
                self._keep_best(step, info or {})
        else:
            saver.save(step, gather(self._subjects, self._world), info or {}, best=best)
            self._saved_step, self._best_under_way = step, best
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
        """Report progress during long work between two steps, or launch takes the rank for hung."""
        self._at = step
        self._wire.report_step(step, self.total_steps)

    def ask_to_stop(self) -> None:
        """Ask this rank to stop, as a SIGTERM would."""
        self._stop.ask()

    @property
    def subjects(self) -> Subjects:
        """The objects whose state is kept."""
        return self._subjects

    @property
    def stop_asked(self) -> bool:
        """Whether this rank was asked to stop; the others learn of it at the next vote."""
        return self._stop.asked

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            self.close()
        else:
            self._stop.unlisten()  # whoever catches the error can be ended by a signal again

    # -- inside

    def _opened(self) -> Saver:
        """All ranks call it."""
        if self._saver is not None:
            return self._saver
        step = self._goes_on_at
        if step is None:
            raise RuntimeError("Checkpointer: load() comes first, in a new training too")
        try:
            saver = self._open_shelves()
        except TrainerError as error:  # of a folder that was there a moment ago: no fault of the user's
            raise SaveFailed(str(error)) from error
        finite = self._team.tell(self._is_finite_on_disk(step) if self._team.is_first else None)
        if finite is not None:
            saver.believe(step, finite=finite)
            self._saved_step = step
        return saver

    def _entry(self, step: int) -> Entry:
        return Entry("step", step, self.folder / folder_name(step))

    def _take_over(self) -> Claim:
        told = self._team.exchange(self._claim() if self._team.leads else (None, "", False))
        for _, problem, fenced in told:
            if fenced:
                raise Fenced(problem)
        claim, *_ = told[self._team.leader]
        problems = [problem for _, problem, _ in told if problem]
        if claim is None or problems:
            raise TrainerError(f"{self.folder}: expected a folder for checkpoints: {problems[0]}")
        return claim

    def _claim(self) -> tuple[Claim | None, str, bool]:
        """The claim; or why there is none, and whether that is because somebody newer has it."""
        try:
            make_folder(self.folder)
            attempt = self._launched.attempt if self._launched.run_dir else None
            return commit.take_over(self.folder, attempt, self._launched.generation), "", False
        except Fenced as error:
            return None, str(error), True
        except (OSError, TrainerError) as error:
            return None, str(error), False

    def _save_surely(self, step: int, info: Mapping[str, Value] | None) -> bool:
        """Save and wait, more than once if it must be. Raises Fenced."""
        self._leaving = True
        for _ in range(_MOST_FAILURES):
            self.save(step, info)
            outcome = self.wait()
            if self._saved_step == step:
                return True
            if outcome is not None and outcome.fenced:
                self._give_up()
        return False

    def _load_from_disk(self) -> Loaded | None:
        passed_over: set[int] = set()
        while True:
            found = self._newest(passed_over)
            if found is None:
                if self._spoilt:
                    why = _NONE_ON_ALL_DISKS if self._team.apart else _NONE_AND_SPOILT
                    raise TrainerError(f"{self.folder}: no checkpoint is sound {why}")
                return None
            entry, manifest = found
            reader = Reader(entry.path, manifest, self._subjects, self._world)
            reader.prepare()
            told = self._team.exchange(read_patiently(reader.read))
            problems = [problem for problem, _ in told if problem]
            if not problems:
                reader.apply()
                return Loaded(
                    entry.step,
                    entry.path,
                    manifest.world_size,
                    from_memory=False,
                    info=manifest.info,
                    finite=manifest.finite,
                    averages=reader.averages,
                )
            self._spoilt = True
            passed_over.add(entry.step)
            damaged = any(damaged for place, (_, damaged) in enumerate(told) if self._team.near(place))
            if self._team.is_first or (self._team.leads and damaged):
                # Where another disk's part is sound it stays: that one's may come back from a copy.
                self._reject(entry, "; ".join(dict.fromkeys(problems)), damaged)

    def _is_finite_on_disk(self, step: int) -> bool | None:
        """Whether the weights in the checkpoint of this step are; None where there is none."""
        try:
            return catalog.read_manifest(self._entry(step)).finite if step in catalog.steps(self.folder) else None
        except (CheckpointDamaged, OSError):
            return None

    def _newest_on_disk(self) -> int:
        if self._team.apart:
            return max((step for step, _ in self._whole_everywhere(dict(self._whole(set())))), default=0)
        return self._team.tell(max(catalog.steps(self.folder), default=0) if self._team.is_first else 0)

    def _newest(self, passed_over: set[int]) -> tuple[Entry, Manifest] | None:
        """The newest that is whole on all disks, and finite, if there is any such."""
        if not self._team.apart:
            manifest = self._team.tell(self._newest_finite(self._whole(passed_over)))
        else:
            mine = dict(self._whole(passed_over))
            everywhere = sorted(self._whole_everywhere(mine), reverse=True)
            manifest = self._team.tell(self._newest_finite((key, mine[key]) for key in everywhere if key in mine))
            for step in catalog.steps(self.folder) if self._team.leads else []:
                if step > (manifest.step if manifest else -1) and step not in passed_over:
                    log.warning("passing over the checkpoint of step %d: not all of it is on every node", step)
        return None if manifest is None else (self._entry(manifest.step), manifest)

    def _newest_finite(self, newest_first: Iterable[tuple[object, Manifest]]) -> Manifest | None:
        """The first that is finite, after which newer ones are set aside: training goes through their steps again. Of
        none that is, the first."""
        spoilt: list[Manifest] = []
        for _, manifest in newest_first:
            if manifest.finite:
                for one in spoilt:
                    self._reject(self._entry(one.step), "its weights are not finite", damaged=True)
                return manifest
            spoilt.append(manifest)
        return spoilt[0] if spoilt else None

    def _whole(self, passed_over: set[int]) -> Iterator[tuple[tuple[int, str], Manifest]]:
        """What is whole on this disk by step and save, newest first; nothing where another rank acts for the disk."""
        for step in reversed(catalog.steps(self.folder) if self._team.leads else []):
            if step not in passed_over:
                entry = self._entry(step)
                try:
                    manifest = catalog.read_manifest(entry)
                    yield (step, manifest.nonce), manifest
                except CheckpointPartial as error:
                    if not self._team.apart:
                        log.warning("passing over the checkpoint of step %d: %s", step, error)
                except CheckpointDamaged as error:
                    self._reject(entry, str(error), damaged=True)
                except OSError as error:
                    self._reject(entry, str(error), damaged=False)

    def _whole_everywhere(self, mine: Mapping[tuple[int, str], Manifest]) -> set[tuple[int, str]]:
        told = self._team.exchange(set(mine) if self._team.leads else None)
        return whole({disk: found} for disk, found in enumerate(told) if found is not None)

    def _reject(self, entry: Entry, problem: str, damaged: bool) -> None:
        """Pass over a checkpoint; one that is damaged gets another name, so that nobody trips over it again."""
        log.warning("falling back to the checkpoint before step %d: %s", entry.step, problem)
        if damaged:
            try:
                log.warning("it was set aside as %s", commit.set_aside(entry))
            except OSError as error:
                log.warning("it could not be set aside: %s", error)

    def _load_from_memory(self, newest_on_disk: int) -> Loaded | None:
        memory = self._memory
        if memory is None:
            return None
        said = self._team.exchange(memory.steps(self._world))
        step, _ = max(whole({rank: steps} for rank, steps in enumerate(said)), default=(0, ""))
        if step <= newest_on_disk:
            return None
        manifest = memory.manifest(step, self._world)
        reader = Reader(memory.entry(step).path, manifest, self._subjects, self._world) if manifest else None
        if reader is not None:
            reader.prepare()
        # Nothing on disk could be put over what a damaged one leaves in the objects: look first, and read then.
        if newest_on_disk == 0 and not self._is_sound(
            step, reader.compare if reader else None, "the training begins anew"
        ):
            return None
        on_disk = "an older one" if newest_on_disk else "none"
        sound = self._is_sound(step, reader.read if reader else None, f"the disk has {on_disk}")
        if not sound or reader is None or manifest is None:
            self._spoilt = True
            return None
        reader.apply(self._team if len(memory.node.ranks) < self._world.size else None)
        path, size = memory.entry(step).path, manifest.world_size
        return Loaded(step, path, size, from_memory=True, info=manifest.info, averages=reader.averages)

    def _is_sound(self, step: int, read: Callable[[], None] | None, otherwise: str) -> bool:
        """Whether all ranks can read their parts of a snapshot in memory."""
        problem, _ = read_patiently(read) if read is not None else ("it has gone", True)
        problems = [said for said in self._team.exchange(problem) if said]
        if problems and self._team.is_first:
            log.warning("the snapshot of step %d in memory is not whole: %s; %s", step, problems[0], otherwise)
        return not problems

    def _prepare(self) -> None:
        """Once, after the first step, when optimizers have their state: find out now, not at the end, what cannot be
        kept; plan, and have the memory ready in time."""
        self._prepared = True
        contents = gather(self._subjects, self._world)
        if self._asynchronous and self._every != Every():
            self._opened().reserve(contents)

    def _remember(self, step: int, info: Mapping[str, Value] | None) -> None:
        memory = self._memory
        if memory is not None and memory.enabled is not False:
            # Over the group of the votes: a save to disk may be using the team's.
            team = Team(self._world.control, self._team.ranks, self._team.me)
            if self._awaits_best(team):
                return
            contents = gather(self._subjects, self._world, speaks=memory.node.is_first)
            if memory.fits(contents, team):
                memory.saver.save(step, contents, info or {})
        self._remembered_at = self._now()

    def _awaits_best(self, team: Team) -> bool:
        """Whether the best model is still being written, somewhere. A snapshot would know of it: who went on from
        that one after a kill would never make it again."""
        if self._best_under_way:
            self._best_under_way = team.greatest(int(self._opened().busy))[0] > 0
        return self._best_under_way

    def _flags(self) -> list[bool]:
        """Stop asked for; time to save, on disk and in memory; fenced; saving has failed too often."""
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
            first and not busy and self.leaves_for_others(),
        ]

    def _give_up(self) -> None:
        outcome = self._opened().wait()
        problem = outcome.problem if outcome else "nothing was saved"
        if outcome is not None and outcome.fenced:
            log.warning("%s", problem)
            raise Fenced(problem)
        raise SaveFailed(f"{self.folder}: {_MOST_FAILURES} saves in a row have failed, the last one with: {problem}")

    def _keep_best(self, step: int, info: Mapping[str, Value]) -> None:
        outcome = self._opened().wait()
        if outcome is None or outcome.path is not None or outcome.step != step:
            try:
                self._opened().keep_best(step, info)
            except (Fenced, OSError, CheckpointDamaged) as error:  # fenced: the next save says so to all
                log.warning("the best checkpoint could not be kept apart: %s", error)

    def _committed(self, step: int) -> None:
        self._wire.report(checkpoint=step)
        self._tell_of_first(step)

    def _remembered(self, step: int) -> None:
        """In this node's memory."""
        self._wire.report(remembered=step)
        self._tell_of_first(step)

    def _tell_of_first(self, _: int) -> None:
        tell, self.when_first_saved = self.when_first_saved, None
        if tell is not None:
            tell()


def _device_of(models: Mapping[str, nn.Module]) -> torch.device | None:
    """Where the training runs, as far as the first parameter tells."""
    return next((parameter.device for model in models.values() for parameter in model.parameters()), None)


def _warn_of_own_state(subjects: Subjects) -> None:
    for key, optimizer in subjects.optimizers.items():
        own = type(optimizer).state_dict is not Optimizer.state_dict
        if own and not isinstance(optimizer, ZeroRedundancyOptimizer):
            log.warning(
                "%s%s has a state_dict() of its own: only its .state and .param_groups are kept\n"
                "hint: keep the optimizer itself in `state` or `per_rank` as well if there is more to it",
                type(optimizer).__name__, f" ({key})" if key else "",
            )  # fmt: skip


def _multiple(step: int, every: Every) -> bool:
    return every.steps is not None and step % every.steps == 0


def _team(world: World, *, apart: bool) -> Team:
    leaders = disk_leaders(world) if apart else None
    if world.control is None:
        return Team(None, (0,), 0, leaders)
    return Team(cpu_group(), tuple(range(world.size)), world.rank, leaders)
