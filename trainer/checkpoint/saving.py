"""Write checkpoints in a background thread with a process group of its own, at most one at a time.

Rank 0 makes a draft folder and names it; every rank writes its file there and reports its digest; the rank that acts
for a disk writes the manifest and renames the draft. If nodes share no disk, each has a draft of that name with the
same manifest, and none is renamed before all are ready. Every failure becomes an Outcome, and training continues.
"""

import contextlib
import logging
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import msgspec

from trainer.checkpoint.contents import Contents
from trainer.checkpoint.copy_lag import CopyLag, bytes_in
from trainer.checkpoint.planning import WritePlan, make_plan, signature
from trainer.checkpoint.save_group import SaveGroup
from trainer.checkpoint.staging import Staging, is_finite
from trainer.checkpoint_files import catalog, commit, fence
from trainer.checkpoint_files.catalog import Entry
from trainer.checkpoint_files.durable import make_folder, sync_folder, write_new
from trainer.checkpoint_files.fence import FencingToken
from trainer.checkpoint_files.layout import data_name, folder_name, new_nonce
from trainer.checkpoint_files.manifest import FileEntry, Manifest, TreeEntry, Value
from trainer.checkpoint_files.retention import Parts, Save, Stock, expired, spared
from trainer.errors import CheckpointDamaged, Fenced, TrainerError
from trainer.world import World

log = logging.getLogger("trainer")
_COPIES_POLL_S = 0.2  # a copy takes longer, where it is waited for
_ABANDONED_S = 0.2  # for a save that comes to nothing: other ranks wait meanwhile


@dataclass(frozen=True, slots=True)
class CheckpointDirectory:
    """A checkpoint directory, the fencing token under which this process writes, and how many checkpoints are kept.

    `run_dir` is the folder of the run; a newer attempt recorded there ends the right to write. `start` is a random
    name, the same on all nodes, by which snapshots that nodes hold of one step are found to belong together; "" gives
    each save a random name of its own.
    """

    folder: Path
    token: FencingToken  # names this start of the processes, which may write until a later start takes a token
    keep: int
    run_dir: Path | None = None  # the folder of the run; a newer attempt recorded there ends the right to write
    start: str = ""  # a random name, equal on all nodes; "": each save gets its own


@dataclass(frozen=True, slots=True)
class SaveRequest:
    """A checkpoint to be written; copies of the parts of tensors that this rank writes are in the staging buffer.

    `weights` names the parts that are weights: the save's outcome says whether all of these are finite.
    """

    step: int
    plan: WritePlan  # which rank writes which parts of tensors
    documents: Mapping[str, bytes]  # the checkpoint's JSON documents by name
    info: Mapping[str, Value]  # the user's values for the manifest
    best: bool  # it is also kept as the best checkpoint, in place of the previous best one
    weights: frozenset[str]  # names of the parts that are weights, which are checked for NaN and infinities


@dataclass(frozen=True, slots=True)
class Outcome:
    """The outcome of a save, the same on all ranks.

    `path` is that of the checkpoint; it is None if the save failed, for the reason `problem`. `fenced`: the reason is
    that newer processes of the run own the folder. `finite`: all weights are. `failed_rank` is the rank whose file or
    disk failed, if known.
    """

    step: int
    path: Path | None = None  # of the checkpoint; None: the save failed
    problem: str = ""  # why it failed
    fenced: bool = False  # it failed because newer processes of the run own the folder
    finite: bool = True  # whether each weight is a number
    failed_rank: int | None = None  # the rank whose file or disk is why it failed; None: not known


@dataclass(frozen=True, slots=True)
class _NewSave:
    """Rank 0's message to the other ranks at the beginning of a save, from which each disk's manifest is made alike."""

    draft: str  # the name of the folder into which the ranks write
    nonce: str  # the random name of the save; of snapshots in memory, that of the start of the ranks
    attempt: int  # of the run
    saved_unix_s: float
    info: bytes  # the user's values for the manifest, as JSON


@dataclass(frozen=True, slots=True)
class _File:
    """The file that one rank has written, or the `problem` why it could not (then `entry` is None).

    `documents` lists name, offset and size of each JSON document in it; `finite` says whether its weights are.
    """

    entry: FileEntry | None  # None: it could not be written
    documents: tuple[tuple[str, int, int], ...] = ()  # name, place, size
    finite: bool = True  # whether its weights are
    problem: str = ""


class Saver:
    """Saves a training's state as checkpoints in one directory.

    All ranks that save together make the same calls in the same order. `save` copies the state, and if `asynchronous` a
    thread then writes it; the next `save` waits for that.
    """

    def __init__(
        self,
        directory: CheckpointDirectory,
        save_group: SaveGroup,
        world: World,
        *,
        whole: bool = True,  # False: the state of these ranks alone
        asynchronous: bool = True,
        on_commit: Callable[[int], None] = lambda _step: None,
        while_waiting: Callable[[], None] = lambda: None,
        poll_s: float = 1.0,  # how often a waiting rank checks the progress of a save
        copy_lag: CopyLag | None = None,  # None: no save waits for second copies
        is_ending: Callable[[], bool] = lambda: False,  # whether the training is about to end
    ) -> None:
        self.failures = 0  # in a row
        self.last: Outcome | None = None
        self._directory, self._save_group, self._world, self._whole = directory, save_group, world, whole
        self._asynchronous, self._on_commit = asynchronous, on_commit
        self._while_waiting, self._poll_s = while_waiting, poll_s
        self._copy_lag, self._is_ending = copy_lag, is_ending
        self._awaits_copies = False
        self._best_pending = False
        self._staging = Staging(world.device)
        self._plan: WritePlan | None = None
        self._thread: threading.Thread | None = None
        self._pieces = 0  # written of the save under way
        self._finite: set[int] = set()
        self._not_finite: set[int] = set()  # saved by this process, with weights that are not finite
        self._contents: dict[int, tuple[str, frozenset[str], float]] = {}  # here: nonce, names, when it was saved

    def add_verified(self, step: int, *, finite: bool) -> None:
        """Record that this process wrote or read the checkpoint of `step` whole, and whether its weights are finite.

        Only checkpoints that are recorded so, and have finite weights, count towards the number to keep; the next save
        may then delete older ones.
        """
        (self._finite if finite else self._not_finite).add(step)

    @property
    def verified(self) -> dict[int, bool]:
        """The steps whose checkpoints this Saver has verified or written, each with whether its weights are finite."""
        return dict.fromkeys(self._finite, True) | dict.fromkeys(self._not_finite, False)

    def plan(self, contents: Contents) -> WritePlan:
        """Return the plan for this state; all ranks call it.

        The earlier plan is returned unless names, shapes or types of some rank's tensors have changed. Raises
        TrainerError on all ranks if a tensor is of a type that cannot be saved.
        """
        stale = self._plan is None or self._plan.signature != signature(contents.tensors)
        if self._save_group.maximum(stale)[0] or self._plan is None:
            self._plan = make_plan(contents.tensors, self._save_group)
        return self._plan

    def reserve(self, contents: Contents) -> None:
        """Plan the first save and allocate its memory; all ranks call it. Do nothing while a save is being written.

        Raises TrainerError on all ranks if a tensor is of a type that cannot be saved.
        """
        if self._thread is None:  # the same on all ranks, and only then is the save group free
            self._staging.reserve(self.plan(contents).size)

    def save(self, step: int, contents: Contents, info: Mapping[str, Value], *, best: bool = False) -> None:
        """Copy the state and write it in the background, after waiting for the save before it; all ranks call it.

        `info` are values for the manifest. With `best`, the checkpoint replaces the previous best one. A Saver that is
        not asynchronous writes before it returns. A save that fails raises nothing: `wait` returns how it ended. Raises
        TrainerError on all ranks if a tensor is of a type that cannot be saved.
        """
        self.wait()
        self._pieces, self._best_pending = 0, best
        plan = self.plan(contents)
        self._staging.fill(plan, contents.tensors)
        request = SaveRequest(step, plan, dict(contents.documents), dict(info), best, contents.weights)
        if not self._asynchronous:
            self._run_save(request)
            return
        # A daemon: a rank that fails elsewhere must not be held by a save that waits for its peers.
        self._thread = threading.Thread(target=self._run_save, args=(request,), name=f"save-{step}", daemon=True)
        self._thread.start()

    @property
    def busy(self) -> bool:
        """Whether a save is being written; waiting until it is copied to other nodes' disks does not count."""
        return self._thread is not None and self._thread.is_alive() and not self._awaits_copies

    def is_best_pending(self, save_group: SaveGroup) -> bool:
        """Return whether some rank is still writing the best model; all ranks of `save_group` call it.

        No snapshot may be made meanwhile: it would record that model as saved, and a training resumed from it would not
        save it again.
        """
        if self._best_pending:
            self._best_pending = save_group.maximum(int(self.busy))[0] > 0
        return self._best_pending

    def wait(self) -> Outcome | None:
        """Wait for the last save, however long it takes, and return how it ended, or None if there was none.

        Meanwhile the Saver's `while_waiting` is called each time that more was written.
        """
        if self._thread is not None:
            seen = 0
            while self._thread.is_alive():
                self._thread.join(self._poll_s)
                if self._pieces != seen:
                    seen = self._pieces
                    self._while_waiting()
            self._thread = None
        return self.last

    def abandon(self, limit_s: float = _ABANDONED_S) -> None:
        """Wait up to `limit_s` seconds for a save whose process groups are broken, then leave its thread to itself.

        gloo may never wake a thread whose connection is closed. If the thread continues after all, its save is refused,
        as newer processes own the folder by then.
        """
        if self._thread is not None:
            self._thread.join(limit_s)
            self._thread = None

    def _count_piece(self) -> None:
        """Count a piece of a file that was written, so that `wait` in another thread sees progress of the save."""
        self._pieces += 1

    def _run_save(self, request: SaveRequest) -> None:
        """Write one checkpoint in the background thread and store its outcome as `last`, also if that fails."""
        try:
            outcome = self._write(request)
        except Exception as error:  # noqa: BLE001 - whatever it is, it must not be lost with the thread
            outcome = _failed(request.step, error)
        if outcome.path is not None:
            self.failures = 0
            self.add_verified(request.step, finite=outcome.finite)
            if outcome.finite:
                self._on_commit(request.step)
            elif self._save_group.is_first:
                log.warning("the weights of step %d are not finite: no start will resume from it", request.step)
        else:
            self.failures += 1
            if self._save_group.is_first:
                log.warning("checkpoint of step %d was not written: %s", request.step, outcome.problem)
        self.last = outcome
        if outcome.path is not None:
            self._clean_up(request)  # nobody waits for it: all know by now that the checkpoint is there

    def _write(self, request: SaveRequest) -> Outcome:
        """Write one checkpoint with the other ranks, which all call it; return its outcome, the same on all.

        If the save fails on any disk, each disk removes what it has of it, and the outcome has the reason.
        """
        begun = self._save_group.broadcast(self._begin(request) if self._save_group.is_first else Outcome(request.step))
        if isinstance(begun, Outcome):
            return begun
        draft = self._directory.folder / begun.draft
        files = self._save_group.all_gather(self._write_file(draft, request))
        manifest = self._manifest(begun, files, request)
        outcome = self._agree(self._prepare(draft, manifest, files))
        if not outcome.problem:
            # From here on a disk may have it that another one lacks. A rank that loses contact with the others leaves
            # all as it is: they may have acknowledged it, and launch needs the draft to complete it.
            outcome = self._agree(self._place(draft, manifest))
        if outcome.problem:
            self._undo(draft, manifest)
            return outcome
        return Outcome(request.step, self._directory.folder / folder_name(request.step), finite=manifest.finite)

    def _agree(self, outcome: Outcome) -> Outcome:
        """Return a failed outcome, the same on all ranks, if the save failed on any disk, else this rank's `outcome`.

        All ranks call it, each with the outcome for its disk. The outcome of a fenced save, one that newer processes of
        the run refuse, comes before other failures. On a shared disk only a failure that the group's first rank passes
        counts.
        """
        outcomes = (
            self._save_group.all_gather(outcome)
            if self._save_group.separate_disks
            else [self._save_group.broadcast(outcome)]
        )
        problems = [one for one in outcomes if one.problem]
        return next((one for one in problems if one.fenced), problems[0]) if problems else outcome

    # Every error on one rank becomes a message to the others, which wait for it.

    def _begin(self, request: SaveRequest) -> _NewSave | Outcome:
        """Make the draft folder; return the message about it for the other ranks, or the failed outcome.

        Only rank 0 calls it.
        """
        token = self._directory.token
        try:
            info = msgspec.json.encode(request.info)
            draft = commit.begin(self._directory.folder, request.step, token, self._directory.run_dir)
            return _NewSave(draft.name, self._directory.start or new_nonce(), token.attempt, time.time(), info)
        except (Fenced, Exception) as error:  # noqa: BLE001 - see above
            return _failed(request.step, error, self._world.rank)

    def _write_file(self, draft: Path, request: SaveRequest) -> _File:
        """Write this rank's file into the draft and return its description; after an error, one with the problem."""
        name = data_name(self._save_group.ranks[self._save_group.me])
        at, documents = request.plan.size, []
        for key, text in request.documents.items():
            documents.append((key, at, len(text)))
            at += len(text)
        try:
            if self._save_group.separate_disks:
                commit.enter(draft)
            staged = self._staging.filled(request.plan.size)
            finite = all(is_finite(staged, part) for part in request.plan.parts if part.name in request.weights)
            parts: tuple[bytes | memoryview, ...] = (staged, *request.documents.values())
            written = write_new(draft / name, parts, self._count_piece)
            sync_folder(draft)  # on a shared file system each client has names of its own to make durable
        except Exception as error:  # noqa: BLE001 - see above
            return _File(None, problem=f"rank {self._world.rank}: {_message_of(error)}")
        return _File(FileEntry(name, written.size, written.digest), tuple(documents), finite)

    def _manifest(self, begun: _NewSave, files: list[_File], request: SaveRequest) -> Manifest:
        """Return the manifest of the save, the same on all ranks.

        `begun` is rank 0's message about the save, and `files` describes the file of each rank.
        """
        return Manifest(
            step=request.step,
            world_size=self._world.size,
            nonce=begun.nonce,
            files=tuple(file.entry for file in files if file.entry is not None),
            tensors=request.plan.tensors,
            trees={
                name: TreeEntry(number, at, size)
                for number, file in enumerate(files)
                for name, at, size in file.documents
            },
            ranks=None if self._whole else self._save_group.ranks,
            apart=self._save_group.separate_disks,
            finite=all(file.finite for file in files),
            attempt=begun.attempt,
            saved_unix_s=begun.saved_unix_s,
            info=msgspec.json.decode(begun.info),
        )

    def _prepare(self, draft: Path, manifest: Manifest, files: list[_File]) -> Outcome:
        """Write the manifest and sync the draft to disk, so that only the final rename is left; return the outcome.

        `files` describes the file of each rank. An error, or a problem of a rank's file, makes the outcome a failure
        and is not raised. Only one rank for each disk does anything; the others return a success.
        """
        if not self._save_group.acts_for_disk:
            return Outcome(manifest.step)
        directory, save_group = self._directory, self._save_group
        away = [
            data_name(rank) for place, rank in enumerate(save_group.ranks) if not save_group.shares_disk_with(place)
        ]
        try:
            if save_group.separate_disks or any(file.problem for file in files):
                fence.check(directory.folder, directory.token, directory.run_dir)
            if problem := "; ".join(file.problem for file in files if file.problem):
                failed = next(rank for rank, file in zip(save_group.ranks, files, strict=True) if file.problem)
                return Outcome(manifest.step, problem=problem, failed_rank=failed)
            if save_group.separate_disks and manifest.step not in self._finite:
                commit.set_aside_partial(self._entry(manifest.step), directory.token, directory.run_dir)
            commit.prepare(draft, manifest, directory.token, directory.run_dir, away)
        except (Fenced, Exception) as error:  # noqa: BLE001 - see above
            return _failed(manifest.step, error, self._world.rank)
        return Outcome(manifest.step)

    def _place(self, draft: Path, manifest: Manifest) -> Outcome:
        """Rename the prepared draft to its final name, so that it is a checkpoint on this disk; return the outcome.

        An error makes the outcome a failure and is not raised. Only one rank for each disk does anything; the others
        return a success.
        """
        try:
            if self._save_group.acts_for_disk:
                commit.place(draft, manifest, self._directory.token, self._directory.run_dir)
        except (Fenced, Exception) as error:  # noqa: BLE001 - see above
            return _failed(manifest.step, error, self._world.rank)
        return Outcome(manifest.step)

    def _undo(self, draft: Path, manifest: Manifest) -> None:
        """Remove a save that failed on another disk from this one, whether it is still a draft or a checkpoint already.

        Only the rank that acts for the disk does so; an error is only logged.
        """
        if self._save_group.acts_for_disk:
            try:
                commit.undo(draft, manifest, self._directory.token, self._directory.run_dir)
            except (Fenced, OSError) as error:
                log.warning("%s could not be removed: %s", draft, error)

    def _clean_up(self, request: SaveRequest) -> None:
        """Make the checkpoint the best if the request says so, and delete old checkpoints; all ranks call it.

        If nodes share no disk, this may first wait for second copies of checkpoints on other disks. Errors are only
        logged, as the checkpoint is committed before and stays valid.
        """
        try:
            if request.best:
                self.keep_best(request.step, request.info)
            stays = spared(self._await_copies(request.step)) if self._save_group.separate_disks else set[int]()
            if self._save_group.acts_for_disk:
                # What is good is on all disks, so that all let the same ones go.
                steps = catalog.steps(self._directory.folder)
                self._finite &= set(steps)
                old = expired(steps, self._finite, self._directory.keep, stays, self._not_finite)
                commit.remove(self._directory.folder / folder_name(step) for step in old)
        except (Fenced, OSError, CheckpointDamaged, RuntimeError) as error:
            # Fenced, or another rank is gone: the next commit reports it to all.
            log.warning("after the checkpoint of step %d: %s", request.step, error)

    def _await_copies(self, step: int) -> list[Stock]:
        """Wait for the copies of checkpoints on other nodes' disks; return which files of which saves each disk has.

        All ranks call it after the save of `step`. They wait until the copies lag by no more than the user's limit;
        without a limit, or while the training ends, not at all. Raises OSError if a disk cannot be read.
        """
        lag, waits = self._copy_lag, True
        try:
            while waits:
                stock = self._files_on_disk(step) if self._save_group.acts_for_disk else {}
                size = bytes_in(self._directory.folder) if lag is not None and self._save_group.acts_for_disk else 0
                saved_at = {step: saved for step, (_, _, saved) in self._contents.items()}
                reports = self._save_group.all_gather((stock, size, saved_at, self._is_ending()))
                if any(stock is None for stock, _, _, _ in reports):
                    raise OSError("no checkpoint is deleted while a disk cannot be read")
                stocks = [stock for stock, _, _, _ in reports if stock]
                if lag is None or any(hurry for _, _, _, hurry in reports):
                    break
                known = {step: saved for _, _, times, _ in reports for step, saved in times.items()}
                copied = sum(size for _, size, _, _ in reports)
                waits = self._save_group.broadcast(
                    lag.waits(stocks, copied, known) if self._save_group.is_first else False
                )
                if waits:
                    self._awaits_copies = True
                    self._pieces += 1  # it makes progress, which a waiting rank reports
                    if not self._asynchronous:
                        self._while_waiting()
                    time.sleep(_COPIES_POLL_S)
        finally:
            self._awaits_copies = False
        return stocks

    def _files_on_disk(self, newest: int) -> Stock | None:
        """Return which files of which checkpoints this disk has, or None if it cannot be read.

        The manifest of the step `newest` is read, others only if they were not read in an earlier call.
        """
        stock, folder = dict[Save, Parts](), self._directory.folder
        try:
            known, self._contents = self._contents, {}
            for step in catalog.steps(folder):
                with contextlib.suppress(CheckpointDamaged):  # it has gone, or counts for nothing
                    nonce, names, saved_at = (known.get(step) if step != newest else None) or self._read(step)
                    self._contents[step] = nonce, names, saved_at
                    here = names.intersection(catalog.names_in(folder / folder_name(step)))
                    stock[Save(step, nonce)] = Parts(here, names - here)
        except OSError as error:
            log.warning("%s: %s", folder, error)
            return None
        return stock

    def _read(self, step: int) -> tuple[str, frozenset[str], float]:
        """Return (nonce, file names, seconds since 1970 when it was saved) from the manifest of this step.

        The nonce is the save's random name, by which two saves of one step differ. Raises CheckpointDamaged or OSError.
        """
        manifest = catalog.read_manifest(self._entry(step), partial=True)
        return manifest.nonce, frozenset(file.name for file in manifest.files), manifest.saved_unix_s

    def keep_best(self, step: int, info: Mapping[str, Value]) -> None:
        """Keep the committed checkpoint of `step` as the best, and remove the previous best; all ranks call it.

        The best is a second folder, of hard links or copies, to whose manifest `info` is added; the checkpoint itself
        stays as it is. Raises Fenced if newer processes of the run own the folder, OSError, also for another node's
        disk, or CheckpointDamaged.
        """
        directory, older, problem = self._directory, list[Path](), None
        if self._save_group.separate_disks:
            info = self._save_group.broadcast(info)
        try:
            if self._save_group.acts_for_disk:
                older = commit.place_best(self._entry(step), directory.token, directory.run_dir, info)
        except (Fenced, Exception) as error:  # noqa: BLE001 - nobody may be left waiting
            problem = error
        failed = self._save_group.separate_disks and any(self._save_group.all_gather(problem is not None))
        if problem is not None:
            raise problem
        if failed:
            raise OSError(f"the best checkpoint, of step {step}, could not be saved separately on another node")
        commit.remove(older)

    def _entry(self, step: int) -> Entry:
        """Return the catalog entry of the checkpoint of this step, whether or not it exists."""
        return Entry("step", step, self._directory.folder / folder_name(step))


def try_take_over(folder: Path, attempt: int | None, generation: int) -> tuple[FencingToken | None, str, bool]:
    """Return (token, problem, fenced) of claiming the folder for the run's processes of this attempt and generation.

    `attempt` is None outside of launch. The generation counts how often the ranks were launched in the attempt. The
    token is None if there is a problem, given as text; `fenced` says that newer processes of the run own the folder.
    """
    try:
        make_folder(folder)
        return commit.take_over(folder, attempt, generation), "", False
    except Fenced as error:
        return None, str(error), True
    except (OSError, TrainerError) as error:
        return None, str(error), False


def _failed(step: int, error: BaseException, rank: int | None = None) -> Outcome:
    """Return the outcome of a save that failed with this error, on `rank` if that is known."""
    return Outcome(step, problem=_message_of(error), fenced=isinstance(error, Fenced), failed_rank=rank)


def _message_of(error: BaseException) -> str:
    """Return the error's message, preceded by its class unless it is a Fenced, OSError or CheckpointDamaged."""
    foreseen = isinstance(error, (Fenced, OSError, CheckpointDamaged))
    return str(error) if foreseen else f"{type(error).__name__}: {error}"
