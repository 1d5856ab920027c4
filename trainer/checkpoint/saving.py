"""Writing checkpoints behind the training: a thread, a group of its own, at most one in flight.

The recipe: the first rank makes a draft and names it, every rank writes its file into it, the first one gathers what
was written, writes the manifest and publishes. Whatever goes wrong is an Outcome: training goes on.
"""

import logging
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from trainer.checkpoint.contents import Contents
from trainer.checkpoint.planning import WritePlan, make_plan, signature
from trainer.checkpoint.staging import Staging
from trainer.checkpoint.team import Team
from trainer.checkpoint_files import catalog, commit, fence
from trainer.checkpoint_files.catalog import Entry
from trainer.checkpoint_files.durable import sync_folder, write_new
from trainer.checkpoint_files.fence import Claim
from trainer.checkpoint_files.layout import data_name, folder_name, new_nonce
from trainer.checkpoint_files.manifest import FileEntry, Manifest, TreeEntry, Value
from trainer.checkpoint_files.retention import expired
from trainer.errors import CheckpointDamaged, Fenced
from trainer.world import World

log = logging.getLogger("trainer")


@dataclass(frozen=True, slots=True)
class Shelf:
    """A folder of checkpoints, whose start may write there, and how many are kept."""

    folder: Path
    claim: Claim
    keep: int
    run_dir: Path | None = None  # whose own fence is asked too
    start: str = ""  # the same for all shelves of one start of a run: which snapshots belong together


@dataclass(frozen=True, slots=True)
class Order:
    """One checkpoint to be written; the bytes of the plan's parts are in the staging buffer."""

    step: int
    plan: WritePlan
    documents: Mapping[str, bytes]
    info: Mapping[str, Value]
    best: bool


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a save ended; the same on all ranks."""

    step: int
    path: Path | None = None
    problem: str = ""
    fenced: bool = False


@dataclass(frozen=True, slots=True)
class _File:
    """What one rank has written, or why it could not."""

    entry: FileEntry | None
    documents: tuple[tuple[str, int, int], ...] = ()  # name, place, size
    problem: str = ""


class Saver:
    """Saves to one shelf. Every rank of the team makes the same calls in the same order."""

    def __init__(
        self,
        shelf: Shelf,
        team: Team,
        world: World,
        *,
        whole: bool = True,  # False: the state of these ranks alone
        asynchronous: bool = True,
        on_commit: Callable[[int], None] = lambda _step: None,
    ) -> None:
        self.failures = 0  # in a row
        self.last: Outcome | None = None
        self._shelf, self._team, self._world, self._whole = shelf, team, world, whole
        self._asynchronous, self._on_commit = asynchronous, on_commit
        self._staging = Staging(world.device)
        self._plan: WritePlan | None = None
        self._thread: threading.Thread | None = None
        self._good: set[int] = set()

    def believe(self, step: int) -> None:
        """A checkpoint of this shelf was verified: it counts among those that are kept."""
        self._good.add(step)

    def plan(self, contents: Contents) -> WritePlan:
        """The plan for this state: the last one while the state has the same shape on all ranks."""
        stale = self._plan is None or self._plan.signature != signature(contents.tensors)
        if self._team.greatest(stale)[0] or self._plan is None:
            self._plan = make_plan(contents.tensors, self._team.group)
        return self._plan

    def reserve(self, contents: Contents) -> None:
        """Plan and have the memory ready before the first save needs it; no use where that one is under way already."""
        if self._thread is None:  # the same on all ranks, and only then is the team's group free
            self._staging.reserve(self.plan(contents).size)

    def save(self, step: int, contents: Contents, info: Mapping[str, Value], *, best: bool = False) -> None:
        """Copy the state and write it behind; returns as soon as the state may change. Waits for the one before."""
        self.wait()
        plan = self.plan(contents)
        self._staging.fill(plan, contents.tensors)
        order = Order(step, plan, dict(contents.documents), dict(info), best)
        if not self._asynchronous:
            self._carry_out(order)
            return
        # A daemon: a rank that fails elsewhere must not be held by a save that waits for its peers.
        self._thread = threading.Thread(target=self._carry_out, args=(order,), name=f"save-{step}", daemon=True)
        self._thread.start()

    @property
    def busy(self) -> bool:
        return self._thread is not None and self._thread.is_alive()

    def wait(self) -> Outcome | None:
        """How the last save ended, once it has."""
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        return self.last

    def _carry_out(self, order: Order) -> None:
        try:
            outcome = self._write(order)
        except Exception as error:  # noqa: BLE001 - whatever it is, it must not be lost with the thread
            outcome = _failed(order.step, error)
        if outcome.path is not None:
            self.failures = 0
            self._good.add(order.step)
            self._on_commit(order.step)
        else:
            self.failures += 1
            if self._team.is_first:
                log.warning("checkpoint of step %d was not written: %s", order.step, outcome.problem)
        self.last = outcome
        if outcome.path is not None and self._team.is_first:
            self._tidy(order)  # nobody waits for it: all know by now that the checkpoint is there

    def _write(self, order: Order) -> Outcome:
        draft = self._team.tell(self._begin(order.step) if self._team.is_first else Outcome(order.step))
        if draft.path is None:
            return draft
        files = self._team.collect(self._write_file(draft.path, order))
        outcome = self._publish(draft.path, files, order) if self._team.is_first else Outcome(order.step)
        return self._team.tell(outcome)

    # Whatever goes wrong on one rank becomes a word to the others, who wait for it.

    def _begin(self, step: int) -> Outcome:
        try:
            return Outcome(step, commit.begin(self._shelf.folder, step, self._shelf.claim, self._shelf.run_dir))
        except (Fenced, Exception) as error:  # noqa: BLE001 - see above
            return _failed(step, error)

    def _write_file(self, draft: Path, order: Order) -> _File:
        name = data_name(self._team.ranks[self._team.me])
        at, documents = order.plan.size, []
        for key, text in order.documents.items():
            documents.append((key, at, len(text)))
            at += len(text)
        try:
            parts: tuple[bytes | memoryview, ...] = (self._staging.filled(order.plan.size), *order.documents.values())
            written = write_new(draft / name, parts)
            sync_folder(draft)  # on a shared file system each client has names of its own to make durable
        except Exception as error:  # noqa: BLE001 - see above
            return _File(None, problem=f"rank {self._world.rank}: {_said(error)}")
        return _File(FileEntry(name, written.size, written.digest), tuple(documents))

    def _publish(self, draft: Path, files: list[_File], order: Order) -> Outcome:
        entries = [file.entry for file in files if file.entry is not None]
        try:
            if len(entries) < len(files):
                fence.check(self._shelf.folder, self._shelf.claim, self._shelf.run_dir)
                raise OSError("; ".join(file.problem for file in files if file.problem))
            manifest = Manifest(
                step=order.step,
                world_size=self._world.size,
                nonce=self._shelf.start or new_nonce(),
                files=tuple(entries),
                tensors=order.plan.tensors,
                trees={
                    name: TreeEntry(number, at, size)
                    for number, file in enumerate(files)
                    for name, at, size in file.documents
                },
                ranks=None if self._whole else self._team.ranks,
                attempt=self._shelf.claim.attempt,
                saved_unix_s=time.time(),
                info=dict(order.info),
            )
            path = commit.publish(draft, manifest, self._shelf.claim, self._shelf.run_dir)
        except (Fenced, Exception) as error:  # noqa: BLE001 - see above
            self._discard(draft)
            return _failed(order.step, error)
        return Outcome(order.step, path)

    def _discard(self, draft: Path) -> None:
        try:
            commit.remove([draft])
        except OSError as error:
            log.warning("%s stays behind: %s", draft, error)

    def _tidy(self, order: Order) -> None:
        """What follows a commit; if it fails, the checkpoint is there all the same."""
        try:
            if order.best:
                self.keep_best(order.step, order.info)
            steps = catalog.steps(self._shelf.folder)
            self._good &= set(steps)
            old = expired(steps, self._good | {order.step}, self._shelf.keep)
            commit.remove(self._shelf.folder / folder_name(step) for step in old)
        except (Fenced, OSError, CheckpointDamaged) as error:  # fenced: the next commit says so to all
            log.warning("after the checkpoint of step %d: %s", order.step, error)

    def keep_best(self, step: int, info: Mapping[str, Value]) -> None:
        """Keep a committed checkpoint apart as the best one, in the place of the one before. First rank only."""
        entry = Entry("step", step, self._shelf.folder / folder_name(step))
        commit.publish_best(entry, self._shelf.claim, self._shelf.run_dir, info)


def _failed(step: int, error: BaseException) -> Outcome:
    return Outcome(step, problem=_said(error), fenced=isinstance(error, Fenced))


def _said(error: BaseException) -> str:
    """What foreseen errors say is enough; of others the kind has to be told too."""
    foreseen = isinstance(error, (Fenced, OSError, CheckpointDamaged))
    return str(error) if foreseen else f"{type(error).__name__}: {error}"
