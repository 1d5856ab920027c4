"""A node's checkpoint directory, as its replica server and its agent use it; every method may wait for the disk. A
Held is the entry of a disk's list about one checkpoint: its identity, and the names of its files that are there and
that are missing. A Save is that identity alone.
"""

import os
import threading
from collections.abc import Iterable
from pathlib import Path
from typing import BinaryIO, cast

from launcher.copies.protocol import Save
from launcher.errors import LaunchError
from trainer.checkpoint_files import partial
from trainer.checkpoint_files.catalog import entries
from trainer.checkpoint_files.durable import hash_file, sync_folder
from trainer.checkpoint_files.layout import Kind, bad_name, folder_name, is_data_name, waiting_name
from trainer.checkpoint_files.manifest import FileEntry, Manifest, decode
from trainer.checkpoint_files.partial import Held, digest_of, order
from trainer.errors import CheckpointDamaged

# Errors that mean that a checkpoint, or a file of it, is not here or is damaged.
NOT_HERE = (FileNotFoundError, NotADirectoryError, CheckpointDamaged)


class SaveGone(LaunchError):
    """Raised when the folder has no such checkpoint, or the checkpoint has no such file."""


class ReplicaFiles:
    """The checkpoints in one folder: it lists, reads and receives them, and sets damaged ones aside (renames them, so
    that they are no longer loaded).

    A draft is a checkpoint that has all its files but was not committed.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._naming = threading.Lock()  # a peer that fetches commits a draft as well as this node itself

    def list(self) -> list[Held]:
        """Return all checkpoints in the folder, each with the names of its files that exist and that are missing.

        Drafts are included: checkpoints that were written but not committed.
        """
        return partial.inventory(self._folder)

    def manifest(self, save: Save) -> bytes:
        """Return the manifest of a committed checkpoint; raise SaveGone if it does not exist."""
        data = self._manifest(save)
        if data is None or digest_of(data) != save.digest:
            raise SaveGone(f"{save}: no such checkpoint is here")
        return data

    def look_at(self, kind: Kind, step: int) -> tuple[Save, Manifest] | None:
        """Return (identity, manifest) of the checkpoint of that kind and step if it is committed in the folder, else
        None.
        """
        data = self._read(kind, step)
        if data is None:
            return None
        try:
            return Save(kind, step, digest_of(data)), decode(data)
        except CheckpointDamaged:
            return None

    def best(self) -> tuple[Save, Manifest] | None:
        """Return (identity, manifest) of the newest checkpoint of the kind "best" (by a metric), or None if there is
        none.
        """
        kept = [entry.step for entry in entries(self._folder) if entry.kind == "best"]
        return self.look_at("best", max(kept)) if kept else None

    def open(self, save: Save, name: str) -> BinaryIO:
        """Open the file `name` of a checkpoint, which one of its ranks wrote, for copying; raise SaveGone if the folder
        has no such checkpoint or file.
        """
        self.manifest(save)
        try:
            return partial.open_file(self._folder, save.step, name, save.kind)
        except NOT_HERE as error:
            raise SaveGone(f"{save}: {name[:64]!r} is not here") from error

    def size(self, save: Save, name: str) -> int:
        """Return the size in bytes of the file `name` of a checkpoint; raise SaveGone if it does not exist."""
        with self.open(save, name) as file:
            return os.fstat(file.fileno()).st_size

    def present(self, save: Save) -> frozenset[str]:
        """Return the names of the files that the folder has of a checkpoint; empty if it is not committed here."""
        held = (one.present for one in self.list() if one.committed and Save.of(one) == save)
        return frozenset(next(held, ()))

    def has(self, save: Save, name: str, size: int) -> bool:
        """Return whether this disk has the file `name` of the checkpoint, with this size."""
        try:
            return self.size(save, name) == size
        except SaveGone:
            return False

    def receive(self, save: Save, manifest: bytes, name: str, chunks: Iterable[memoryview]) -> None:
        """Write a copy of the file `name` of a checkpoint, whose bytes are in `chunks`, into the checkpoint's draft on
        this disk: the folder in which its files are collected. `manifest` is the content of the checkpoint's manifest.

        If another checkpoint has the folder name of this one, the copy goes to a folder of its own, until `move_in`
        moves that into place. Raise CheckpointDamaged if the content does not match the manifest, and OSError if this
        disk fails.
        """
        folder = self._waiting_folder(save) if self._is_taken(save) else self._folder
        partial.receive(folder, manifest, name, cast("Iterable[bytes]", chunks), save.kind)

    def check_reported(self, save: Save, name: str) -> bool:
        """Read every byte of the file `name`, which another node reported as damaged. If it is damaged, rename this one
        file, so that the checkpoint lacks it here, and return True.

        Return False if it is whole, or if the checkpoint or the file is not here.
        """
        found = self.look_at(save.kind, save.step)
        if found is None or found[0] != save:
            return False
        folder = self._place(save)
        try:
            file = entry(found[1], name)
            hash_file(folder / name, file.size, file.digest)
        except CheckpointDamaged:
            os.rename(folder / name, self._folder / bad_name(name))
            sync_folder(folder)
            return True
        except (SaveGone, FileNotFoundError):
            return False
        return False

    def commit(self, save: Save) -> None:
        """Commit the draft of a checkpoint here, by a rename to its final name, after another node has committed it on
        its own disk; do nothing if it is committed here too. Raise SaveGone if there is no draft.
        """
        with self._naming:
            data = self._manifest(save)
            if data is not None and digest_of(data) == save.digest:
                return
            partial.promote(self._folder, save.step, self._held(save, self.list()).nonce)

    def set_aside(self, save: Save) -> bool:
        """Rename the checkpoint, so that it is no longer loaded; return False if it does not exist."""
        data = self._manifest(save)
        if data is None or digest_of(data) != save.digest:
            return False
        partial.set_aside(self._folder, save.step, save.kind)
        return True

    def make_room(self, save: Save) -> bool:
        """Set aside the checkpoint in the folder that `save` would have, if it is another one: its manifest differs or
        cannot be read. Return False if there is none.
        """
        if not self._is_taken(save):
            return False
        partial.set_aside(self._folder, save.step, save.kind)
        return True

    def make_room_for_draft(self, save: Save) -> bool:
        """Set aside a committed checkpoint that has the folder name of `save`, so that the draft of `save` can be
        committed; return False if there is none.

        Raise SaveGone if that checkpoint is complete and newer (of a later attempt, or saved later), or if there is no
        draft of `save`.
        """
        return self._is_taken(save) and self._give_way(save, self._held(save, self.list()))

    def move_in(self, save: Save) -> bool:
        """Rename a received copy of `save` that waits in its own folder to its proper name, after setting aside another
        checkpoint of that name. Return False if no copy waits.

        Raise SaveGone if the other checkpoint is complete and newer.
        """
        waiting = self._waiting_folder(save)
        if not waiting.is_dir():
            return False
        self._give_way(save, self._held(save, partial.inventory(waiting)))
        os.rename(waiting / self._place(save).name, self._place(save))
        sync_folder(self._folder)
        waiting.rmdir()
        return True

    def _give_way(self, save: Save, to: Held) -> bool:
        """Set aside the committed checkpoint that has the kind and step of `save`, if there is one, so that `to` gets
        its folder's name. Raise SaveGone if the former is complete and newer than `to` (of a later attempt, or saved
        later).

        Always return True, so that the call can stand at the end of a condition.
        """
        place = (save.kind, save.step)
        here = [held for held in self.list() if held.committed and (held.kind, held.step) == place]
        if any(not held.missing and order(held) > order(to) for held in here):
            raise SaveGone(f"{save}: the one that is here is whole, and newer")
        partial.set_aside(self._folder, save.step, save.kind)
        return True

    def _is_taken(self, save: Save) -> bool:
        """Return whether another checkpoint, with another manifest, has the folder name of this save."""
        if not os.path.lexists(self._place(save)):
            return False
        data = self._manifest(save)
        return data is None or digest_of(data) != save.digest

    def _held(self, save: Save, among: Iterable[Held]) -> Held:
        """Return the entry of this save in the list `among`; raise SaveGone if it is not listed."""
        found = next((held for held in among if Save.of(held) == save), None)
        if found is None:
            raise SaveGone(f"{save}: no such checkpoint is here")
        return found

    def _waiting_folder(self, save: Save) -> Path:
        """Return the folder for copies of this save that wait because another checkpoint has its name."""
        return self._folder / waiting_name(folder_name(save.step, save.kind), save.digest)

    def _place(self, save: Save) -> Path:
        """Return the path of the folder that `save` has once it is committed, whether it exists or not."""
        return self._folder / folder_name(save.step, save.kind)

    def _manifest(self, save: Save) -> bytes | None:
        """Return the manifest of the committed checkpoint that has the kind and step of `save`, or None if there is
        none. It may be another checkpoint than `save`: its digest is not compared.
        """
        return self._read(save.kind, save.step)

    def _read(self, kind: Kind, step: int) -> bytes | None:
        """Return the bytes of the manifest of the committed checkpoint of this kind and step, or None if there is
        none.
        """
        try:
            return partial.read_manifest(self._folder, step, kind)
        except NOT_HERE:
            return None


def entry(manifest: Manifest, name: str) -> FileEntry:
    """Return the entry of the file with this name; raise SaveGone for any other name, such as `../../x`."""
    found = next((file for file in manifest.files if file.name == name), None)
    if found is None or not is_data_name(name):
        raise SaveGone(f"step {manifest.step}: {name[:64]!r} is not one of its files")
    return found
