"""List the checkpoints in a folder, and check that they are complete."""

import contextlib
import errno
import os
import stat
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from pathlib import Path

from trainer.checkpoint_files.durable import hash_file, read_small, unreadable_is_damaged
from trainer.checkpoint_files.layout import MANIFEST, Kind, is_bad, parse_folder_name
from trainer.checkpoint_files.manifest import Manifest, decode
from trainer.errors import CheckpointDamaged, CheckpointPartial

_NO_FOLDER = (errno.ENOENT, errno.ENOTDIR, errno.ELOOP)


@dataclass(frozen=True, slots=True)
class Entry:
    """A committed checkpoint: its kind ("step" or "best"), step and folder; its contents have not been read."""

    kind: Kind
    step: int
    path: Path


def entries(folder: Path) -> list[Entry]:
    """Return all committed checkpoints in `folder`: first those to resume from, then those of the best model.

    Both are in order of their steps, the oldest first. The list is empty if the folder does not exist.
    """
    found = []
    for name in names_in(folder):
        parsed = parse_folder_name(name)
        if parsed is not None:
            found.append(Entry(*parsed, folder / name))
    return sorted(found, key=lambda entry: (entry.kind == "best", entry.step))


def steps(folder: Path) -> list[int]:
    """Return the steps of the checkpoints in `folder` that a training can resume from, oldest first.

    The best checkpoints are left out, as no training resumes from them. The list is empty if the folder does not exist.
    """
    return [entry.step for entry in entries(folder) if entry.kind == "step"]


def set_aside(folder: Path) -> list[Path]:
    """Return the folders of damaged checkpoints that were renamed, so that they are not loaded."""
    return sorted(folder / name for name in names_in(folder) if is_bad(name))


def read_manifest(entry: Entry, *, partial: bool = False) -> Manifest:
    """Return the manifest, checked against its own checksum, its folder's name, and the files' names and sizes.

    The bytes of the files are not read. Raises CheckpointDamaged. If the nodes that wrote the checkpoint share no disk,
    some of its files may be on other disks than this one: then CheckpointPartial is raised unless `partial` is set.
    """
    with _removal_reported(entry):
        with unreadable_is_damaged(entry.path / MANIFEST):
            data = read_small(entry.path / MANIFEST)
        try:
            manifest = decode(data)
        except CheckpointDamaged as error:
            raise CheckpointDamaged(f"{entry.path}: {error}") from error
        if manifest.step != entry.step:
            raise CheckpointDamaged(f"{entry.path}: the manifest is of step {manifest.step}")
        away = missing(entry.path, manifest) if manifest.apart else []
        check_files(entry.path, manifest, away)
    if away and not partial:
        raise CheckpointPartial(f"{entry.path}: {', '.join(away)} not on this disk")
    return manifest


def missing(path: Path, manifest: Manifest) -> list[str]:
    """Return the names of the manifest's files that are not in the folder."""
    found = set(names_in(path))
    return [file.name for file in manifest.files if file.name not in found]


def check_files(path: Path, manifest: Manifest, away: Collection[str] = ()) -> None:
    """Raise CheckpointDamaged if a file of the manifest is missing or has another size, or if there is any other.

    The files' bytes are not read. Files in `away` are on other disks and must not be in the folder.
    """
    wanted = {file.name for file in manifest.files if file.name not in away} | {MANIFEST}
    found = set(names_in(path))
    if missing := sorted(wanted - found):
        raise CheckpointDamaged(f"{path}: {', '.join(missing)} missing")
    if extra := sorted(found - wanted):
        raise CheckpointDamaged(f"{path}: {', '.join(extra)} does not belong there")
    for file in (file for file in manifest.files if file.name in wanted):
        status = (path / file.name).lstat()
        if not stat.S_ISREG(status.st_mode):
            raise CheckpointDamaged(f"{path / file.name}: expected a file")
        if status.st_size != file.size:
            raise CheckpointDamaged(f"{path / file.name}: expected {file.size} bytes, got {status.st_size}")


def verify(entry: Entry, *, partial: bool = False, after_file: Callable[[], None] = lambda: None) -> Manifest:
    """Compare every byte of every file with the manifest, and return the manifest.

    With `partial`, files that are only on other nodes' disks are not compared; otherwise they raise CheckpointPartial.
    `after_file` is called after each file. Raises CheckpointDamaged if a file is missing or has other bytes.
    """
    manifest = read_manifest(entry, partial=partial)
    with _removal_reported(entry):
        away = missing(entry.path, manifest) if partial else []
        for file in (file for file in manifest.files if file.name not in away):
            hash_file(entry.path / file.name, file.size, file.digest)
            after_file()
    return manifest


@contextlib.contextmanager
def _removal_reported(entry: Entry) -> Iterator[None]:
    """Change errors of this context about missing files into CheckpointDamaged.

    Its text says `was removed` if the whole checkpoint is gone, else which file is missing. Other errors pass through.
    """
    try:
        yield
    except (FileNotFoundError, NotADirectoryError, CheckpointDamaged) as error:
        if not os.path.lexists(entry.path):
            raise CheckpointDamaged(f"{entry.path}: was removed meanwhile") from error
        if isinstance(error, CheckpointDamaged):
            raise
        raise CheckpointDamaged(f"{error.filename}: is missing") from error


def names_in(folder: Path) -> list[str]:
    """Return the names of files and folders in `folder`, or an empty list if it does not exist."""
    try:
        return os.listdir(folder)
    except OSError as error:
        if error.errno not in _NO_FOLDER:
            raise
        return []
