"""Turn a draft into a checkpoint, which exists from the moment its folder has its final name.

All renames stay inside the checkpoint directory. Only one rank per disk calls these functions; the others write their
files into the draft that it names.
"""

import contextlib
import errno
import os
import shutil
from collections.abc import Collection, Iterable, Iterator, Mapping
from pathlib import Path

import msgspec

from trainer.checkpoint_files import fence
from trainer.checkpoint_files.catalog import Entry, check_files, entries, missing, read_manifest
from trainer.checkpoint_files.durable import PIECE_BYTES, Written, open_to_read, sync_folder, write_new
from trainer.checkpoint_files.fence import FencingToken
from trainer.checkpoint_files.layout import (
    MANIFEST,
    Kind,
    bad_name,
    copy_name,
    draft_name,
    folder_name,
    is_draft,
    is_trash,
    new_nonce,
    trash_name,
)
from trainer.checkpoint_files.manifest import FileEntry, Manifest, Value, decode, encode
from trainer.errors import CheckpointDamaged


def take_over(folder: Path, attempt: int | None = None, generation: int = 0) -> FencingToken:
    """Claim the run's checkpoint folder for its processes of this attempt and generation, so that saves of others fail.

    A generation is one launch of the ranks in an attempt. Outside of launch there is no attempt number: with None the
    caller is newer than all that claimed the folder before. Drafts of others are deleted. Returns the fencing token
    with which to save here. Raises Fenced if newer processes of the run own the folder, TrainerError if another process
    holds its lock for too long, and OSError.
    """
    token = fence.take_token(folder, attempt, generation)
    for name in os.listdir(folder):
        if is_draft(name):
            discard(folder / name)
    empty_trash(folder)
    fence.check(folder, token)
    return token


def begin(folder: Path, step: int, token: FencingToken, run_dir: Path | None = None) -> Path:
    """Make a draft folder for the checkpoint of `step`, and return it.

    Raises Fenced if `token` is no longer the newest or a newer attempt is recorded in `run_dir`, the run's folder;
    CheckpointDamaged if one of these records is damaged; or OSError.
    """
    draft = folder / draft_name(step, token.attempt, new_nonce())
    _begin(draft, token, run_dir)
    return draft


def enter(draft: Path) -> None:
    """Create the draft folder `draft` on this node's disk, unless it exists; rank 0 has chosen its name.

    Every rank of a save calls it if nodes have separate disks. It checks no fencing token: the rank that acts for the
    disk does that later.
    """
    with contextlib.suppress(FileExistsError):
        draft.mkdir(mode=0o700)
    draft.chmod(0o700)  # whatever the umask


def publish(
    draft: Path, manifest: Manifest, token: FencingToken, run_dir: Path | None = None, kind: Kind = "step"
) -> Path:
    """Write the manifest and give the draft its final name; return the checkpoint's folder.

    `token` is the fencing token of this start of the training: Fenced is raised if a later start has taken one. The
    file FENCE in the run's folder `run_dir`, with the newest attempt, is checked too (None: outside of launch). Raises
    also OSError, or CheckpointDamaged if the draft's files are not those of the manifest. After an error the draft is
    removed as far as the disk allows.
    """
    prepare(draft, manifest, token, run_dir)
    return place(draft, manifest, token, run_dir, kind)


def prepare(
    draft: Path, manifest: Manifest, token: FencingToken, run_dir: Path | None = None, away: Collection[str] = ()
) -> None:
    """Write the manifest into the draft, check that its files are those of the manifest, and sync its folder to disk.

    The other files were synced when they were written; those in `away` are on other disks. `token` is the fencing token
    of this start of the training, and `run_dir` the run's folder, with the file FENCE (None: outside of launch).

    After an error the draft is removed. Raises OSError, or CheckpointDamaged if files are missing, too many or of
    another size. If a later start has taken a token, or FENCE names a newer attempt, Fenced is raised in place of these
    two errors.
    """
    with _discarding_on_error(draft, token, run_dir):
        data = encode(manifest)
        decode(data)  # what nobody could load must not be acknowledged
        write_new(draft / MANIFEST, [data])
        check_files(draft, manifest, away)
        sync_folder(draft)
        if away:  # another disk may have it committed before this one has: then the draft is needed
            sync_folder(draft.parent)


def place(
    draft: Path, manifest: Manifest, token: FencingToken, run_dir: Path | None = None, kind: Kind = "step"
) -> Path:
    """Give a prepared draft its final name, and return the checkpoint's folder.

    `kind` is part of the name: the checkpoint of a step, or the best one; `token` is that of this start of the ranks.
    Raises Fenced if the newest token in the checkpoint directory is not `token`, or if the file FENCE in the run's
    folder `run_dir` names a newer attempt; CheckpointDamaged if one of the two is damaged; or OSError, also if another
    checkpoint has the name. After an error the draft is removed.
    """
    folder = draft.parent
    final = folder / folder_name(manifest.step, kind)
    with _discarding_on_error(draft, token, run_dir):
        fence.check(folder, token, run_dir)
        if os.path.lexists(final) and os.path.lexists(draft):  # else it may be this one, by another's hand
            raise FileExistsError(errno.EEXIST, "a checkpoint of this step exists already", str(final))
        _rename(draft, final, kind, manifest)
    try:
        sync_folder(folder)
    except OSError:  # it is whole, but a power cut might take it back
        with contextlib.suppress(OSError, CheckpointDamaged):
            fence.check(folder, token, run_dir)  # a newer start may have loaded it already: then it stays
        with contextlib.suppress(OSError):
            remove([final])
        raise
    return final


def undo(draft: Path, manifest: Manifest, token: FencingToken, run_dir: Path | None = None) -> None:
    """Remove the draft or checkpoint that `prepare` or `place` made on this disk, after another disk has failed.

    A checkpoint of the step with another manifest is left alone. `token` is that of this start of the ranks: once a
    newer start owns the folder, only the draft is removed, and Fenced is raised. `run_dir` is the run's folder, whose
    FENCE (the newest attempt) is checked too. Raises also CheckpointDamaged if a fence is damaged, or OSError.
    """
    final = draft.parent / folder_name(manifest.step)
    remove([draft])
    fence.check(draft.parent, token, run_dir)  # a newer start may have loaded it already: then it stays
    with contextlib.suppress(CheckpointDamaged):  # nothing is there, or another one
        if read_manifest(Entry("step", manifest.step, final), partial=True) == manifest:
            remove([final])


def set_aside_partial(entry: Entry, token: FencingToken, run_dir: Path | None = None) -> None:
    """Rename an incomplete checkpoint, if it exists, to a name under which it is not loaded.

    Its step can then be saved again. `run_dir` is the run's folder, whose FENCE (the newest attempt) is checked as well
    as that of the checkpoints. Raises Fenced if `token` is not the newest, CheckpointDamaged if a fence is damaged, or
    OSError.
    """
    if os.path.lexists(entry.path):
        fence.check(entry.path.parent, token, run_dir)
        set_aside(entry)


def publish_best(
    source: Entry, token: FencingToken, run_dir: Path | None = None, info: Mapping[str, Value] | None = None
) -> Path:
    """Keep a committed checkpoint as the best one and remove the previous best; return its new folder.

    The files are hard links where the disk allows. `info` is added to the manifest, as a checkpoint may turn out to be
    the best only after it was saved. `run_dir` is the run's folder, whose FENCE (the newest attempt) is checked too.
    Raises Fenced, OSError or CheckpointDamaged.
    """
    older = place_best(source, token, run_dir, info)
    remove(older)
    return source.path.parent / folder_name(source.step, "best")


def place_best(
    source: Entry, token: FencingToken, run_dir: Path | None = None, info: Mapping[str, Value] | None = None
) -> list[Path]:
    """Make a checkpoint the best one, and return the folders of the previous best ones, for the caller to `remove`.

    The checkpoint `source` stays, and the best one is a second folder beside it, of hard links where the disk allows,
    else copies; damage to a hard-linked file affects both. Files that this disk lacks are left out.

    `token` belongs to this start of the training, and `info` is added to the manifest. `run_dir` is the run's folder,
    whose FENCE (the newest attempt) is checked too. Raises Fenced if a newer start or attempt exists, OSError, and
    CheckpointDamaged if the manifest cannot be read.
    """
    folder = source.path.parent
    manifest = read_manifest(source, partial=True)
    away = missing(source.path, manifest)
    manifest = msgspec.structs.replace(manifest, info={**manifest.info, **(info or {})})
    best = Entry("best", source.step, folder / folder_name(source.step, "best"))
    # Listed before the fence is asked: what a newer start keeps later is not among them.
    older = [entry.path for entry in entries(folder) if entry.kind == "best" and entry.path != best.path]
    if _is_ours(best.path, "best", manifest):
        fence.check(folder, token, run_dir)
    else:
        draft = folder / copy_name(best.path.name)
        _begin(draft, token, run_dir)
        with _discarding_on_error(draft, token, run_dir):
            for file in (file for file in manifest.files if file.name not in away):
                _link_or_copy(source.path, draft, file)
            if os.path.lexists(best.path):  # damaged, or of a past that was given up
                fence.check(folder, token, run_dir)
                set_aside(best)
            prepare(draft, manifest, token, run_dir, away)
            place(draft, manifest, token, run_dir, kind="best")
    return older


def remove(paths: Iterable[Path]) -> None:
    """Remove the checkpoints in these folders: rename all durably first, so that none is half deleted, then delete.

    Folders that do not exist are ignored. Raises OSError.
    """
    folders = set()
    for path in paths:
        discard(path)
        folders.add(path.parent)
    for folder in folders:
        empty_trash(folder)


def set_aside(entry: Entry) -> Path:
    """Rename a damaged checkpoint, so that it is not loaded but can be inspected; return its new path.

    Raises OSError.
    """
    aside = entry.path.parent / bad_name(entry.path.name)
    os.rename(entry.path, aside)
    sync_folder(entry.path.parent)
    return aside


def discard(path: Path) -> None:
    """Rename `path` to a trash name, to be deleted later; do nothing if it does not exist. Raises OSError."""
    try:
        os.rename(path, path.parent / trash_name(path.name))
    except FileNotFoundError:
        return
    sync_folder(path.parent)


def empty_trash(folder: Path) -> None:
    """Delete the files and folders in `folder` that have a trash name, which `discard` gave them; the rest stays.

    A folder that cannot be deleted, perhaps because another process is deleting it, is left without an error.
    """
    for name in os.listdir(folder):
        if is_trash(name):
            path = folder / name
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path, ignore_errors=True)  # somebody else may be emptying it as well
            else:
                path.unlink(missing_ok=True)


def _begin(draft: Path, token: FencingToken, run_dir: Path | None) -> None:
    """Make the draft folder, then check that `token` is still the newest; else remove the folder and raise Fenced.

    `run_dir` is the run's folder, whose FENCE (the newest attempt) is checked too. Raises CheckpointDamaged if a fence
    is damaged, and OSError.
    """
    draft.mkdir(mode=0o700)
    with _discarding_on_error(draft, token, run_dir):
        draft.chmod(0o700)  # whatever the umask
        fence.check(draft.parent, token, run_dir)  # after making it: a later start removes it


def _rename(draft: Path, final: Path, kind: Kind, manifest: Manifest) -> None:
    """Rename the draft to its final name.

    Over NFS an error may come although the rename has happened; it is ignored if `final` then holds the checkpoint of
    this manifest and kind. Raises OSError otherwise.
    """
    try:
        os.rename(draft, final)
    except OSError:  # over NFS an error may come back although the server did it
        if not _is_ours(final, kind, manifest):
            raise


def _is_ours(final: Path, kind: Kind, manifest: Manifest) -> bool:
    """Return whether the folder `final` holds the checkpoint of this kind from the same save as `manifest`."""
    try:
        return read_manifest(Entry(kind, manifest.step, final), partial=True).nonce == manifest.nonce
    except (CheckpointDamaged, OSError):
        return False


def _link_or_copy(source: Path, draft: Path, file: FileEntry) -> None:
    """Hard-link a file into the draft, or copy it if the file system has no hard links.

    Raises OSError, or CheckpointDamaged if the copied bytes are not those that `file` describes.
    """
    try:
        os.link(source / file.name, draft / file.name, follow_symlinks=False)
    except OSError:  # a file system without hard links
        with os.fdopen(open_to_read(source / file.name), "rb") as whole:
            written = write_new(draft / file.name, iter(lambda: whole.read(PIECE_BYTES), b""))
        if written != Written(file.size, file.digest):
            raise CheckpointDamaged(f"{source / file.name}: is not what was written") from None


@contextlib.contextmanager
def _discarding_on_error(draft: Path, token: FencingToken, run_dir: Path | None) -> Iterator[None]:
    """Remove the draft if the context raises, so that the next draft has space.

    Raises Fenced in place of an OSError or CheckpointDamaged if the folder has a newer token than `token`, or the run
    (`run_dir`, None: not asked) a newer attempt: its processes may have removed the draft, which explains the error.
    """
    try:
        yield
    except BaseException as error:
        with contextlib.suppress(OSError):  # the first error is the one to raise; the next start cleans up
            remove([draft])
        if isinstance(error, (OSError, CheckpointDamaged)):
            # A newer start takes drafts away, at any moment: then that is what the error is about.
            fence.check(draft.parent, token, run_dir)
        raise
