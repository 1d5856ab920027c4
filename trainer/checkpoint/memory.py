"""Keep the newest snapshot in each node's memory, so that ranks that restart on the same nodes resume from it.

Each node's snapshot has the state of its own ranks, written by them together as on disk: same files, same manifest,
same fencing token.
"""

import logging
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch.distributed as dist

from trainer.checkpoint.contents import Contents
from trainer.checkpoint.planning import make_plan
from trainer.checkpoint.save_group import SaveGroup, nodes
from trainer.checkpoint.saving import CheckpointDirectory, Saver, try_take_over
from trainer.checkpoint_files import catalog, commit
from trainer.checkpoint_files.catalog import Entry
from trainer.checkpoint_files.layout import folder_name, new_nonce
from trainer.checkpoint_files.manifest import Manifest
from trainer.connections import group_connections
from trainer.errors import CheckpointDamaged, Fenced
from trainer.wire import Every, Launched
from trainer.world import World

log = logging.getLogger("trainer")
_COPIES = 3  # that launch keeps for another node: the newest two, and one that is on its way


@dataclass(slots=True)
class MemoryTier:
    """The snapshots in one node's memory; either all ranks of the run have such a tier or none has.

    `every` is how often snapshots are made, `folder` where, `saver` writes them, and `limit_bytes` is the most memory
    for them (None: what is free). `node` is the save group of the node's ranks. `keep` snapshots are kept, and `copies`
    of another node's. `enabled` says whether a snapshot fits, None until that was measured.
    """

    every: Every
    folder: Path
    limit_bytes: int | None
    saver: Saver
    node: SaveGroup
    keep: int
    copies: int = 0  # how many snapshots of another node this one keeps as well
    enabled: bool | None = None  # None: nobody has looked yet whether a snapshot fits

    def steps(self, world: World) -> list[tuple[int, str]]:
        """Return (step, nonce) of each snapshot that was saved by exactly the ranks on this node now.

        Damaged snapshots and those whose weights are not finite are left out. The nonce is the random name of the save,
        the same on all nodes.
        """
        found = [(step, self.manifest(step, world)) for step in catalog.steps(self.folder)]
        return [(step, manifest.nonce) for step, manifest in found if manifest is not None]

    def manifest(self, step: int, world: World) -> Manifest | None:
        """Return the manifest of this node's snapshot of a step.

        Returns None if there is none, if it is damaged or its weights are not finite, or if it was saved by other ranks
        than those on this node now, or in a world of another size.
        """
        try:
            manifest = catalog.read_manifest(self.entry(step))
        except (CheckpointDamaged, OSError):
            return None
        same = manifest.world_size == world.size and manifest.ranks == self.node.ranks and manifest.finite
        return manifest if same else None

    def entry(self, step: int) -> Entry:
        """Return the catalog entry of the snapshot of this step, whether or not it exists."""
        return Entry("step", step, self.folder / folder_name(step))

    def fits(self, contents: Contents, world_group: SaveGroup) -> bool:
        """Return whether all snapshots to keep and one that is being written fit into every node's memory limit.

        All ranks call it. Only the first call measures, and sets `enabled`, which later calls return. `world_group`
        spans all ranks. Raises TrainerError on all ranks if a tensor is of a type that cannot be saved.
        """
        if self.enabled is None:
            mine = make_plan(contents.tensors, self.node).size + sum(map(len, contents.documents.values()))
            needed = (self.keep + 1 + self.copies) * sum(self.node.all_gather(mine))
            # What older snapshots take is given back as newer ones come.
            free = shutil.disk_usage(self.folder).free
            free += sum(path.stat().st_size for path in self.folder.glob("step-*/*"))
            limit = min(free, self.limit_bytes or free)
            refused = world_group.maximum(int(needed > limit))[0] > 0
            if needed > limit and self.node.is_first:
                log.warning(
                    "no snapshots in memory: %s would need %d MB, allowed are %d MB\n"
                    "hint: checkpoint.memory_limit sets how much a node may spend",
                    self.folder, needed >> 20, limit >> 20,
                )  # fmt: skip
            self.enabled = not refused
        return self.enabled

    def remove_after(self, step: int) -> None:
        """Remove this node's snapshots of steps after `step`, because the training will repeat those steps.

        The node's first rank removes them; on other ranks nothing is done. Raises OSError if that fails.
        """
        if self.node.is_first:
            newer = [self.entry(one).path for one in catalog.steps(self.folder) if one > step]
            commit.remove(newer)


def open_memory_tier(
    launched: Launched, world: World, save_group: SaveGroup, *, asynchronous: bool, on_commit: Callable[[int], None]
) -> MemoryTier | None:
    """Return the MemoryTier for the snapshots of this rank's node, or None if there are to be none; all ranks call it.

    There are none if snapshots are off or some node cannot have them. The tier is claimed with a fencing token. With
    `asynchronous`, snapshots are written by a background thread, which calls `on_commit` with the step of each written
    snapshot whose weights are finite; otherwise the saving call does both. Raises Fenced if newer processes of the run
    have claimed it.
    """
    every = Every.parse(launched.memory_every, "checkpoint.memory_every")
    if every == Every():
        return None
    folder = launched.memory_dir
    everywhere = all(save_group.all_gather(folder is not None))  # a node without a usable /dev/shm gets no folder
    if folder is None or not everywhere:
        return None
    node = _node_save_group(world)
    keep = 1 if len(node.ranks) == world.size else 2  # nodes may be one snapshot apart when one of them falls
    copied = launched.memory_copied and keep > 1
    keep += copied  # and a copy is one more behind, where another one is on its way
    token, problem, fenced = (
        try_take_over(folder, launched.attempt, launched.generation) if node.is_first else (None, "", False)
    )
    token = node.broadcast(token)
    problems = [one for one in save_group.all_gather((problem, fenced)) if one[0]]
    if any(fenced for _, fenced in problems):
        raise Fenced(problems[0][0])
    if token is None or problems:
        if save_group.is_first:
            log.warning("no snapshots in memory: %s", problems[0][0])
        return None
    directory = CheckpointDirectory(folder, token, keep, start=save_group.broadcast(new_nonce()))
    saver = Saver(directory, node, world, whole=False, asynchronous=asynchronous, on_commit=on_commit)
    return MemoryTier(every, folder, launched.memory_limit_bytes, saver, node, keep, _COPIES if copied else 0)


def _node_save_group(world: World) -> SaveGroup:
    """Return this node's ranks as a group that saves together.

    All ranks have to call this, as each makes the process groups of all nodes.
    """
    if world.control is None:
        return SaveGroup(None, (0,), 0)
    found = nodes(world)
    mine = SaveGroup(None, (world.rank,), 0)
    for name in dict.fromkeys(found):
        ranks = [rank for rank, node in enumerate(found) if node == name]
        with group_connections.watching():
            group = dist.new_group(ranks, backend="gloo")
        if world.rank in ranks and len(ranks) > 1 and isinstance(group, dist.ProcessGroup):
            mine = SaveGroup(group, tuple(ranks), ranks.index(world.rank))
    return mine
