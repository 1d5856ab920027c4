"""List the files that one disk has of checkpoints written without a shared disk, and receive missing ones.

Launch copies the files and may do so while ranks train. A checkpoint counts if its folder has its final name on at
least one disk and each of its files is on some disk.
"""

import contextlib
import errno
import os
import stat
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO

import xxhash

from trainer.checkpoint_files import commit
from trainer.checkpoint_files.catalog import Entry, names_in
from trainer.checkpoint_files.durable import Written, make_folder, open_to_read, read_small, sync_folder, write_new
from trainer.checkpoint_files.layout import (
    MANIFEST,
    Kind,
    copy_name,
    folder_name,
    is_data_name,
    is_save,
    parse_folder_name,
)
from trainer.checkpoint_files.manifest import FileEntry, Manifest, decode
from trainer.errors import CheckpointDamaged


@dataclass(frozen=True, slots=True)
class Held:
    """A checkpoint as one disk has it: `present` and `missing` name its files there.

    `nonce` is the save's random name, `attempt` that of the run, `folder` the name of its folder, and `digest` that of
    its manifest. `committed` is False for a prepared draft, which counts only if another disk has committed it.
    """

    step: int
    kind: Kind
    nonce: str  # of the save that it came from
    attempt: int
    saved_unix_s: float
    folder: str  # its name
    committed: bool  # False: a prepared draft, which counts only if another disk has it committed
    digest: str  # of the manifest, which is the same on all disks
    present: tuple[str, ...]  # the names of the files that the disk has in full
    missing: tuple[str, ...]  # the names of those that it lacks or has in another size

    @classmethod
    def of(
        cls, manifest: Manifest, data: bytes, sizes: Mapping[str, int | None], folder: str, kind: Kind = "step", *,
        committed: bool = True,
    ) -> "Held":  # fmt: skip
        """Return which files of a checkpoint a disk has: those whose size there is the one in the manifest.

        `data` is the encoded form of `manifest`. `sizes` gives the size of each file in `folder` by name (None: it is
        no regular file). `committed` says whether the folder has its final name.
        """
        present = tuple(file.name for file in manifest.files if sizes.get(file.name) == file.size)
        missing = tuple(file.name for file in manifest.files if file.name not in present)
        return cls(
            manifest.step, kind, manifest.nonce, manifest.attempt, manifest.saved_unix_s, folder, committed,
            digest_of(data), present, missing,
        )  # fmt: skip


def digest_of(manifest: bytes) -> str:
    """Return the digest (XXH3 with 128 bits, as hex) of a manifest's encoded bytes, which identifies the checkpoint."""
    return xxhash.xxh3_128_hexdigest(manifest)


def inventory(folder: Path) -> list[Held]:
    """Return what `folder` has of every checkpoint with an undamaged manifest.

    First come the checkpoints of steps, then those kept as the best by a metric, then drafts that are not committed
    yet; each of these by step.
    """
    found = []
    for name in names_in(folder):
        parsed = parse_folder_name(name)
        if parsed is not None or is_save(name):
            held = _held_at(folder / name, parsed)
            found += [] if held is None else [held]
    return sorted(found, key=lambda held: (not held.committed, held.kind == "best", held.step, held.folder))


@dataclass(slots=True)
class SaveOnDisks:
    """A committed checkpoint, and which of several numbered disks have its manifest and each of its files.

    `held` describes what one disk has of it, one on which it is committed. `with_manifest` are the disks with its
    manifest, and `holders` gives by file name the disks that have the file, an empty list if none has.
    """

    held: Held  # what one disk has of it, on which it is committed
    with_manifest: list[int] = field(default_factory=list)  # the numbers of the disks that have its manifest
    holders: dict[str, list[int]] = field(default_factory=dict)  # by file name, the numbers of the disks that have it

    @property
    def whole(self) -> bool:
        """Whether each file is on some disk."""
        return all(self.holders.values())


def order(held: Held) -> tuple[int, int, float, str]:
    """Return the key by which saves are sorted, oldest first: (step, attempt, time, digest of the manifest)."""
    return held.step, held.attempt, held.saved_unix_s, held.digest


def committed_over(disks: Iterable[tuple[int, Sequence[Held]]], kind: Kind = "step") -> list[SaveOnDisks]:
    """Return the checkpoints that are committed on some of these numbered disks, oldest first.

    Files of them may be missing on all disks. `disks` gives each disk's number with its `inventory`; `kind` chooses
    the checkpoints by step or the best ones.
    """
    saves: dict[tuple[int, str], SaveOnDisks] = {}
    for disk, held in ((disk, held) for disk, listed in disks for held in listed if held.kind == kind):
        found = saves.setdefault((held.step, held.digest), SaveOnDisks(held))
        found.held = found.held if found.held.committed else held
        found.with_manifest.append(disk)
        for name in (*held.present, *held.missing):
            found.holders.setdefault(name, [])
        for name in held.present:
            found.holders[name].append(disk)
    return sorted((found for found in saves.values() if found.held.committed), key=lambda found: order(found.held))


def whole_over(disks: Iterable[Sequence[Held]], kind: Kind = "step") -> list[Held]:
    """Return the checkpoints of this kind that are complete over all disks together, oldest first.

    Each is committed on at least one disk, and each of its files is on some disk, not necessarily the same one. `disks`
    has the `inventory` of each disk.
    """
    return [found.held for found in committed_over(enumerate(disks), kind) if found.whole]


def read_manifest(folder: Path, step: int, kind: Kind = "step") -> bytes:
    """Return the encoded manifest of a committed checkpoint in `folder`, for `receive` on another disk.

    It is not checked. Raises OSError if it cannot be read, and CheckpointDamaged if it is no regular file or over 1
    GiB.
    """
    return read_small(folder / folder_name(step, kind) / MANIFEST)


def open_file(folder: Path, step: int, name: str, kind: Kind = "step") -> BinaryIO:
    """Open the file `name` of the committed checkpoint of `step` and `kind` in `folder` for reading.

    Raises CheckpointDamaged if that is not the name of a rank's file, or something else than a file is in its place;
    OSError if there is no such file or it cannot be opened.
    """
    if not is_data_name(name):
        raise CheckpointDamaged(f"{name!r}: expected the name of a rank's file")
    return os.fdopen(open_to_read(folder / folder_name(step, kind) / name), "rb", buffering=0)


def receive(
    folder: Path, manifest: bytes, name: str, chunks: Iterable[bytes | memoryview], kind: Kind = "step"
) -> None:
    """Write a copy of one file and the checkpoint's manifest into the checkpoint directory `folder`.

    `manifest` is the encoded manifest, `name` the file's name in it, `chunks` the file's bytes, and `kind` the kind of
    checkpoint. Once this returns, both files are synced, and the bytes had the size and digest in the manifest. Raises
    CheckpointDamaged if they have not, FileExistsError if another checkpoint of this step is here, and OSError; no part
    of the file is left then.
    """
    whole = decode(manifest)
    file = next((file for file in whole.files if file.name == name), None)
    if file is None:
        raise CheckpointDamaged(f"{name!r}: is not in the manifest of step {whole.step}")
    place = _place(folder, whole, manifest, kind)
    copy = folder / copy_name(name)  # not in the checkpoint: the next start takes away what a kill leaves here
    try:
        if write_new(copy, _at_most(file, chunks)) != Written(file.size, file.digest):
            raise CheckpointDamaged(f"{place / name}: the received bytes are not what was written")
        os.rename(copy, place / name)
    except BaseException:
        with contextlib.suppress(OSError):  # the first error is the one to raise
            copy.unlink(missing_ok=True)
        raise
    sync_folder(place)


def promote(folder: Path, step: int, nonce: str) -> None:
    """Commit, in the checkpoint directory `folder`, a prepared draft of a save that another disk has committed.

    The save is named by its step and nonce. Calling it again does nothing. Raises FileNotFoundError if there is no such
    draft, and FileExistsError if another checkpoint of this step is here.
    """
    final = folder / folder_name(step)
    held = [held for held in inventory(folder) if (held.step, held.nonce, held.kind) == (step, nonce, "step")]
    if not any(one.committed for one in held):
        if os.path.lexists(final):
            raise FileExistsError(errno.EEXIST, "another checkpoint of this step is there", str(final))
        if not held:
            raise FileNotFoundError(errno.ENOENT, f"no prepared draft {nonce} of this step", str(final))
        os.rename(folder / held[0].folder, final)
    sync_folder(folder)


def set_aside(folder: Path, step: int, kind: Kind = "step") -> Path:
    """Rename a checkpoint to make room for another one of the same step, and return its new path.

    Under the new name (`.bad-...`) it is not loaded. Raises OSError if it does not exist or cannot be renamed.
    """
    return commit.set_aside(Entry(kind, step, folder / folder_name(step, kind)))


def _held_at(path: Path, parsed: tuple[Kind, int] | None) -> Held | None:
    """Return what this disk has of the checkpoint at `path`.

    None if it is damaged or removed meanwhile, has no manifest yet, or is a draft (a save that is not committed) whose
    files are all on a single disk. `parsed` is kind and step from a final name, None for a draft's name.
    """
    try:
        data = read_small(path / MANIFEST)
        manifest = decode(data)
        sizes = {name: _size(path / name) for name in names_in(path)}
    except (CheckpointDamaged, OSError):
        return None
    kind, step = parsed or ("step", manifest.step)
    if manifest.step != step or not (parsed or manifest.apart):
        return None
    return Held.of(manifest, data, sizes, path.name, kind, committed=parsed is not None)


def _place(folder: Path, manifest: Manifest, data: bytes, kind: Kind) -> Path:
    """Return the folder of the committed checkpoint with this manifest, whose encoded form is `data`.

    If there is none, the draft that this disk has of the checkpoint is committed; without a draft, a folder is made
    that has only the manifest. `kind` is "step", or "best" for one of the best checkpoints. Raises FileExistsError if
    `folder` has another checkpoint of this step.
    """
    final = folder / folder_name(manifest.step, kind)
    if not os.path.lexists(final):
        drafts = [held for held in inventory(folder) if not held.committed and held.step == manifest.step]
        if kind == "step" and any(held.nonce == manifest.nonce for held in drafts):
            promote(folder, manifest.step, manifest.nonce)
        else:
            _make(final, data)
    if not _has(final, data):
        raise FileExistsError(errno.EEXIST, "another checkpoint of this step is there", str(final))
    return final


def _make(final: Path, data: bytes) -> None:
    """Make the folder `final` of a checkpoint that other disks have, so that its files can be received into it.

    At first it has only the manifest, whose encoded form is `data`. A folder that another process has made meanwhile is
    left as it is.
    """
    folder = final.parent
    make_folder(folder)
    draft = folder / copy_name(final.name)
    draft.mkdir(mode=0o700)
    try:
        draft.chmod(0o700)  # whatever the umask
        write_new(draft / MANIFEST, [data])
        sync_folder(draft)
        os.rename(draft, final)
    except BaseException as error:
        with contextlib.suppress(OSError):
            commit.remove([draft])
        if not (isinstance(error, OSError) and os.path.lexists(final)):  # somebody else has made it meanwhile
            raise
    sync_folder(folder)


def _has(final: Path, data: bytes) -> bool:
    """Return whether the folder `final` has exactly this manifest, whose encoded form is `data`."""
    try:
        return read_small(final / MANIFEST) == data
    except (CheckpointDamaged, FileNotFoundError):
        return False


def _at_most(file: FileEntry, chunks: Iterable[bytes | memoryview]) -> Iterator[bytes | memoryview]:
    """Yield the chunks. Raises CheckpointDamaged once they exceed the size of `file`, before they fill the disk."""
    left = file.size
    for chunk in chunks:
        left -= memoryview(chunk).nbytes
        if left < 0:
            raise CheckpointDamaged(f"{file.name}: expected {file.size} bytes, got more")
        yield chunk


def _size(path: Path) -> int | None:
    """Return the size of a regular file, or None if `path` is something else."""
    status = path.lstat()
    return status.st_size if stat.S_ISREG(status.st_mode) else None
