"""The snapshots in a node's memory, as its replica server offers them: those of its own ranks, and copies of another
node's.
"""

from collections.abc import Collection
from pathlib import Path
from typing import BinaryIO

from launcher.copies.files import ReplicaFiles, SaveGone
from launcher.copies.protocol import Save
from trainer.checkpoint_files import commit
from trainer.checkpoint_files.durable import make_folder
from trainer.checkpoint_files.layout import data_name, folder_name
from trainer.checkpoint_files.partial import Held, order

_COPIES = "copies"  # inside the node's folder


class NodeMemory(ReplicaFiles):
    """The snapshots in this node's memory: those of its own ranks, and in `copies` those of another node."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        make_folder(folder / _COPIES)
        self.copies = Snapshots(folder / _COPIES)
        self.own = Snapshots(folder)

    def list(self) -> list[Held]:
        """Return an entry for each snapshot of this node's ranks, then for each copy of another node's."""
        return [*super().list(), *self.copies.list()]

    def manifest(self, save: Save) -> bytes:
        """Return the manifest of a snapshot; raise SaveGone if it does not exist."""
        return self._holder(save).manifest(save)

    def open(self, save: Save, name: str) -> BinaryIO:
        """Open the file `name` of the snapshot `save`, one rank's part of it, among this node's own snapshots or the
        copies of another node's; raise SaveGone if it does not exist.
        """
        return self._holder(save).open(save, name)

    def commit(self, save: Save) -> None:
        """Answer a request to commit a checkpoint, which on a disk renames its draft: do nothing, because a snapshot in
        memory needs no commit, but raise SaveGone if this node does not have it.
        """
        self.manifest(save)

    def _holder(self, save: Save) -> ReplicaFiles:
        """Return the folder of this node's ranks if it has this save, else that of the copies, without a check that it
        has the save. A Save belongs to one node, as snapshots of one step on two nodes have different manifests.
        """
        try:
            self.own.manifest(save)
        except SaveGone:
            return self.copies
        return self.own


class Snapshots(ReplicaFiles):
    """The snapshots, which are checkpoints of a step in memory instead of on disk, in one folder of a node's memory."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self._path = folder

    def whole(self, names: Collection[str]) -> list[Held]:
        """Return those snapshots (a Held lists the files of one) that are complete and consist of exactly the files
        `names`, oldest first.
        """
        return whole(self.list(), names)

    def delete_conflicting(self, save: Save) -> None:
        """Delete the snapshot in the folder that has the folder name of `save` but another manifest, if any."""
        if self._is_taken(save):
            commit.remove([self._path / folder_name(save.step, save.kind)])

    def keep_only(self, kept: Collection[Held]) -> None:
        """Delete all snapshots except those in `kept`, entries of an earlier `list()`."""
        commit.remove(self._path / held.folder for held in self.list() if held not in kept)

    def drop_unfinished(self, save: Save) -> None:
        """Delete the snapshot `save` from the folder unless all its files are there."""
        if not any(held.digest == save.digest and not held.missing for held in self.list()):
            commit.remove([self._path / folder_name(save.step, save.kind)])


def whole(listed: Collection[Held], names: Collection[str]) -> list[Held]:
    """Return those of the listed snapshots (a Held lists the files of one) that are complete and consist of exactly the
    files `names`, oldest first.
    """
    found = [one for one in listed if one.committed and not one.missing and set(one.present) == set(names)]
    return sorted(found, key=order)


def names_of(group_rank: int, ranks_per_node: int) -> frozenset[str]:
    """Return the names of the files, `rank-00003.data` and so on, that the ranks of the node with this group rank
    write.
    """
    return frozenset(data_name(group_rank * ranks_per_node + local) for local in range(ranks_per_node))
