"""Find the newest complete checkpoint or snapshot of a training and load it on all ranks."""

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path

from trainer.checkpoint.contents import Subjects
from trainer.checkpoint.loading import Loaded, Reader, read_patiently
from trainer.checkpoint.memory import MemoryTier
from trainer.checkpoint.save_group import SaveGroup
from trainer.checkpoint_files import catalog, commit
from trainer.checkpoint_files.catalog import Entry
from trainer.checkpoint_files.complete_steps import whole
from trainer.checkpoint_files.layout import folder_name
from trainer.checkpoint_files.manifest import Manifest
from trainer.errors import CheckpointDamaged, CheckpointPartial, TrainerError
from trainer.world import World

log = logging.getLogger("trainer")
# Another disk may have copies of what was set aside here.
_NONE_ON_ALL_DISKS = "on all disks; the next start looks for copies of them"
_NONE_AND_SPOILT = "any more, and parts of a damaged one are in the model; the next start begins at step 0"


class NewestState:
    """Loads the newest checkpoint or snapshot that is complete on all ranks; every rank makes the same calls."""

    def __init__(self, folder: Path, subjects: Subjects, world: World, save_group: SaveGroup) -> None:
        self._folder, self._subjects, self._world, self._save_group = folder, subjects, world, save_group
        self._spoilt = False  # a damaged checkpoint was read into the objects: they are no longer what they began as

    def load(self, memory: MemoryTier | None) -> Loaded | None:
        """Load the newest state into the model and the other objects, and return facts about it; None if there is none.

        `memory` has the snapshots of this node; one is used if it is newer than the newest checkpoint on disk. All
        ranks call it. A state that turns out to be damaged as it is read is passed over, and the next older one read.

        Raises TrainerError if the checkpoint is of another model. It is also raised if none is left after parts of a
        damaged one were read into the objects, whose first values are lost by that.
        """
        loaded = None if memory is None else self._load_from_memory(memory)
        return loaded or self._load_from_disk()

    def _load_from_disk(self) -> Loaded | None:
        """Load the newest undamaged checkpoint on disk and return facts about it, or None if there is none.

        All ranks call it. Raises TrainerError if the checkpoint is of another model, or if there is none but parts of a
        damaged one have been read into the objects already.
        """
        passed_over: set[int] = set()
        while True:
            found = self._newest(passed_over)
            if found is None:
                if self._spoilt:
                    why = _NONE_ON_ALL_DISKS if self._save_group.separate_disks else _NONE_AND_SPOILT
                    raise TrainerError(f"{self._folder}: no checkpoint is sound {why}")
                return None
            entry, manifest = found
            reader = Reader(entry.path, manifest, self._subjects, self._world)
            reader.prepare()
            results = self._save_group.all_gather(read_patiently(reader.read))
            problems = [problem for problem, _ in results if problem]
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
            near = self._save_group.shares_disk_with
            damaged = any(damaged for place, (_, damaged) in enumerate(results) if near(place))
            if self._save_group.is_first or (self._save_group.acts_for_disk and damaged):
                # Where another disk's part is sound it stays: the damaged one's may come back from a copy.
                _reject(entry, "; ".join(dict.fromkeys(problems)), damaged)

    def _newest_on_disk(self) -> int:
        """Return the newest step that has a complete checkpoint on disk, or 0; all ranks call it.

        If nodes have separate disks, it is complete on all of them. On a shared disk its folder's name counts alone, as
        a folder gets the name of a checkpoint only once it is complete; damage is not noticed here.
        """
        if self._save_group.separate_disks:
            return max((step for step, _ in self._whole_everywhere(dict(self._whole(set())))), default=0)
        return self._save_group.broadcast(
            max(catalog.steps(self._folder), default=0) if self._save_group.is_first else 0
        )

    def _newest(self, passed_over: set[int]) -> tuple[Entry, Manifest] | None:
        """Return the newest checkpoint that is complete on all disks, or None if there is none; all ranks call it.

        Checkpoints whose weights are not all finite count only if there is no other; else those newer than the returned
        one are renamed, so that they are not loaded again. Damaged ones are renamed too. Checkpoints of the steps in
        `passed_over` could not be read before, and are left out.
        """
        if not self._save_group.separate_disks:
            manifest = self._save_group.broadcast(self._newest_finite(self._whole(passed_over)))
        else:
            mine = dict(self._whole(passed_over))
            everywhere = sorted(self._whole_everywhere(mine), reverse=True)
            manifest = self._save_group.broadcast(
                self._newest_finite((key, mine[key]) for key in everywhere if key in mine)
            )
            for step in catalog.steps(self._folder) if self._save_group.acts_for_disk else []:
                if step > (manifest.step if manifest else -1) and step not in passed_over:
                    log.warning("skipping the checkpoint of step %d: not all of it is on every node", step)
        return None if manifest is None else (self._entry(manifest.step), manifest)

    def _newest_finite(self, newest_first: Iterable[tuple[object, Manifest]]) -> Manifest | None:
        """Return the first manifest with finite weights, else the first one, or None for no manifests.

        `newest_first` has pairs, of which the second is the manifest. Once a finite one is found, newer checkpoints are
        renamed, so that none is loaded again: training repeats their steps.
        """
        not_finite: list[Manifest] = []
        for _, manifest in newest_first:
            if manifest.finite:
                for one in not_finite:
                    _reject(self._entry(one.step), "its weights are not finite", damaged=True)
                return manifest
            not_finite.append(manifest)
        return not_finite[0] if not_finite else None

    def _whole(self, passed_over: set[int]) -> Iterator[tuple[tuple[int, str], Manifest]]:
        """Yield ((step, nonce), manifest) of the checkpoints that are complete on this disk, newest first.

        The nonce is the random name of a save. One rank acts for each disk; nothing is yielded on the others. Steps in
        `passed_over` are left out, and so are checkpoints that are incomplete or cannot be read now. Damaged ones are
        left out and renamed, so that none is loaded again.
        """
        for step in reversed(catalog.steps(self._folder) if self._save_group.acts_for_disk else []):
            if step not in passed_over:
                entry = self._entry(step)
                try:
                    manifest = catalog.read_manifest(entry)
                    yield (step, manifest.nonce), manifest
                except CheckpointPartial as error:
                    if not self._save_group.separate_disks:
                        log.warning("skipping the checkpoint of step %d: %s", step, error)
                except CheckpointDamaged as error:
                    _reject(entry, str(error), damaged=True)
                except OSError as error:
                    _reject(entry, str(error), damaged=False)

    def _whole_everywhere(self, mine: Mapping[tuple[int, str], Manifest]) -> set[tuple[int, str]]:
        """Return (step, nonce) of the checkpoints that are complete on every disk; all ranks call it.

        `mine` are those that are complete on this rank's disk, by (step, nonce); it counts only on the rank that acts
        for the disk. The nonce is the random name of a save.
        """
        found = self._save_group.all_gather(set(mine) if self._save_group.acts_for_disk else None)
        return whole({disk: keys} for disk, keys in enumerate(found) if keys is not None)

    def _load_from_memory(self, memory: MemoryTier) -> Loaded | None:
        """Load the newest snapshot in memory and return facts about it; all ranks call it.

        Returns None if the disk has a step at least as new, or if no snapshot can be read.
        """
        newest_on_disk = self._newest_on_disk()
        found = self._save_group.all_gather(memory.steps(self._world))
        step, _ = max(whole({rank: steps} for rank, steps in enumerate(found)), default=(0, ""))
        if step <= newest_on_disk:
            return None
        manifest = memory.manifest(step, self._world)
        reader = Reader(memory.entry(step).path, manifest, self._subjects, self._world) if manifest else None
        if reader is not None:
            reader.prepare()
        # With nothing on disk to overwrite what a damaged one leaves in the objects: compare before reading.
        if newest_on_disk == 0 and not self._is_sound(
            step, reader.compare if reader else None, "the training begins at step 0"
        ):
            return None
        on_disk = "an older one" if newest_on_disk else "none"
        sound = self._is_sound(step, reader.read if reader else None, f"the disk has {on_disk}")
        if not sound or reader is None or manifest is None:
            self._spoilt = True
            return None
        reader.apply(self._save_group if len(memory.node.ranks) < self._world.size else None)
        path, size = memory.entry(step).path, manifest.world_size
        return Loaded(step, path, size, from_memory=True, info=manifest.info, averages=reader.averages)

    def _is_sound(self, step: int, read: Callable[[], None] | None, otherwise: str) -> bool:
        """Call `read` and return whether it worked on all ranks, which all call this; if not, log a warning.

        `read` None means that this rank's snapshot of that step is gone. `otherwise` says in the warning what is loaded
        instead.
        """
        problem, _ = read_patiently(read) if read is not None else ("it is gone", True)
        problems = [one for one in self._save_group.all_gather(problem) if one]
        if problems and self._save_group.is_first:
            log.warning("the snapshot of step %d in memory is not whole: %s; %s", step, problems[0], otherwise)
        return not problems

    def _entry(self, step: int) -> Entry:
        """Return the catalog entry of the checkpoint of this step, whether or not it exists."""
        return Entry("step", step, self._folder / folder_name(step))


def _reject(entry: Entry, problem: str, damaged: bool) -> None:
    """Log that a checkpoint is skipped because of `problem`.

    If it is `damaged`, also try to rename it, so that it is not loaded again.
    """
    log.warning("falling back to the checkpoint before step %d: %s", entry.step, problem)
    if damaged:
        try:
            log.warning("it was set aside as %s", commit.set_aside(entry))
        except OSError as error:
            log.warning("it could not be set aside: %s", error)
