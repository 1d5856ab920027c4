"""Freeze a project's code: hash it, keep it once in a store under its digest, and copy it into each run, whose ranks
may change their copy.

    project ─ hash what changed ─► store/<digest>/ (pristine, read-only) ─ copy ─► <run>/code/ (private, writable)
       └── what the store does not have is read once, hashed, and written to both ──┘

The digest identifies the content, so that the same code is stored once. A tree of the store is used only after its own
bytes have been hashed, because another user may once have been able to write there. Code of many files is only stored
at submit; the process that starts the ranks calls `bring_code` to copy it into the run.
"""

import contextlib
import errno
import os
import stat
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from launcher.errors import BadInput
from launcher.plan.model import FrozenCode
from launcher.run.code.copying import NewTree, Watch, copy_hashed, copy_tree
from launcher.run.code.hashes import CodeChanged, CodeIndex, content_hashes, readable, tree_digest
from launcher.run.code.listing import CodeList, folders_of, list_again, list_frozen
from launcher.run.drafts import new_draft, remove, remove_orphans
from launcher.run.durable import make_dir, sync_dir
from launcher.run.layout import STORE, RunDir
from launcher.run.ownership import is_ours_alone


@dataclass(frozen=True, slots=True)
class Freezing:
    """The result of freezing code: its digest, how many bytes were hashed because they were new or changed, and how
    many the store gained.
    """

    code: FrozenCode
    hashed_bytes: int
    stored_bytes: int


def freeze(
    code: CodeList,
    store: Path,
    target: Path | None,
    now_ns: int | None = None,
    *,
    fsync: bool = True,
    watch: Watch = iter,
) -> Freezing:
    """Copy the code through the store into `target`, which must not exist; with `fsync` the target is durable on
    return.

    Return the digest, and how much had to be hashed and stored. Without a target only the store gets the code, durably.
    Raise BadInput for a file that cannot be read, or keeps changing; the target is then removed. `now_ns` is the
    current time (None: that of the clock), and the files are iterated through `watch`, which can report progress.
    """
    make_dir(store)
    if not is_ours_alone(store):  # made when others could write to the folder that it is in
        _set_aside(store)
        make_dir(store)
    remove_orphans(store)
    now_ns = time.time_ns() if now_ns is None else now_ns
    with _new_folder(target):
        try:
            return _freeze(code, store, target, now_ns, watch, fsync=fsync)
        except CodeChanged:
            if target is not None:
                remove(target)
                target.mkdir(mode=0o700)
            return _freeze(list_again(code), store, target, now_ns, watch, fsync=fsync)


@contextlib.contextmanager
def _new_folder(folder: Path | None) -> Iterator[None]:
    """Create the folder, with any missing parents, and remove it with its contents if the body raises an error; do
    nothing for None. Raise FileExistsError if the folder exists.
    """
    if folder is None:
        yield
        return
    make_dir(folder.parent)
    folder.mkdir(mode=0o700)
    try:
        yield
    except BaseException:
        remove(folder)
        raise


def bring_code(run: RunDir, digest: str, watch: Watch = iter) -> None:
    """Copy the code with this digest from the store into the run, durably. Do nothing if the run has a folder of code:
    such a folder is always complete.

    Raise BadInput if the store does not have that code, or it was changed or could have been changed by another user.
    Files are iterated through `watch`, which can report progress.
    """
    if run.code.is_dir():
        return
    remove_orphans(run.path)
    pristine = stored(run, digest)
    code = _listed_whole(pristine, digest)
    if code is None:
        hint = "hint: submit again; only what was frozen at submit is ever run"
        raise BadInput(f"{pristine}: is not the code any more that was frozen for {run.path.name}", hint)
    draft = new_draft(run.path)
    try:
        draft.mkdir(mode=0o700)
        copy_tree(code, pristine, draft, watch=watch)
        if not run.code.is_dir():  # else another was faster
            os.rename(draft, run.code)
    finally:
        remove(draft)
    sync_dir(run.path)


def _listed_whole(pristine: Path, digest: str) -> CodeList | None:
    """Return the list of files of the tree `pristine` in the store, or None if their content does not match `digest` or
    another user could have changed them.
    """
    if not (pristine.is_dir() and is_ours_alone(pristine.parent)):
        return None
    code, now_ns = list_frozen(pristine), time.time_ns()
    hashes = content_hashes(code, "copied", CodeIndex(pristine.parent, pristine, now_ns))
    named = tree_digest(code.files, hashes) == digest
    return code if named and _is_whole(code, hashes, pristine, now_ns) else None


def stored(run: RunDir, digest: str) -> Path:
    """Return the path at which the store of this run's project keeps the code with this digest, whether or not it is
    there.
    """
    return run.path.parent / STORE / digest


def _freeze(code: CodeList, store: Path, target: Path | None, now_ns: int, watch: Watch, *, fsync: bool) -> Freezing:
    """Copy the code into the store, if it is not there, and into the target unless it is None; return the code's digest
    and how many bytes were hashed and stored. With `fsync` the target is durable on return.

    Only files that have changed since the store's index noted their hashes are hashed. `now_ns` is the current time,
    and the files are iterated through `watch`, which can report progress.
    """
    index, digest = CodeIndex(store, code.root, now_ns), ""
    if not index.is_empty:
        hashes = content_hashes(code, "frozen", index)
        digest = tree_digest(code.files, hashes)
        if _is_whole(code, hashes, store / digest, now_ns):
            index.save()
            if target is not None:
                copy_tree(code, store / digest, target, fsync=fsync, watch=watch)
            return Freezing(FrozenCode(digest, len(code.files), code.bytes), index.hashed_bytes, 0)
    digest, stored = _store_and_copy(code, store, target, index, now_ns, watch, fsync=fsync)
    index.save()
    return Freezing(FrozenCode(digest, len(code.files), code.bytes), index.hashed_bytes, code.bytes if stored else 0)


def _store_and_copy(
    code: CodeList, store: Path, target: Path | None, index: CodeIndex, now_ns: int, watch: Watch, *, fsync: bool
) -> tuple[str, bool]:
    """Write the code to the target (None for none) and, read-only, to the store if the store lacks it; return (digest,
    whether the store has gained a tree).

    With `fsync` the target is durable on return. If two processes store the same code, one stores it and both succeed.
    The hash of each file is added to `index`. `now_ns` is the current time, and the files are iterated through `watch`,
    which can report progress.
    """
    draft = new_draft(store)
    draft.mkdir(mode=0o700)
    kept, copy = NewTree(draft, writable=False), None if target is None else NewTree(target, writable=True)
    try:
        with readable(code.root, "frozen"):
            copied = list(copy_hashed(code, kept, copy, watch))
        hashes = {one.path: index.learn(one.path, one.looked, one.digest) for one in copied}
        kept.sync(code.files)
        if copy is not None and fsync:
            copy.sync(code.files)
        digest = tree_digest(code.files, hashes)
        stored = _put(draft, code, hashes, store / digest, now_ns)
    finally:
        remove(draft)
    sync_dir(store)
    if stored:
        pristine = CodeIndex(store, store / digest, now_ns)
        for one in copied:
            pristine.learn(one.path, one.kept, one.digest, at_rest=True)
        pristine.save()
    return digest, stored


def _put(draft: Path, code: CodeList, hashes: Mapping[str, str], pristine: Path, now_ns: int) -> bool:
    """Rename the complete draft of the code to `pristine` in the store and return True; return False, and leave the
    draft, if the store already has the code there, complete by the file hashes in `hashes`.

    An incomplete or changed copy in the store is replaced. `now_ns` is the current time.
    """
    try:
        os.rename(draft, pristine)
    except OSError as error:
        if error.errno not in (errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR):
            raise
        if _is_whole(code, hashes, pristine, now_ns):
            return False
        _set_aside(pristine)
        os.rename(draft, pristine)
    return True


def _is_whole(code: CodeList, hashes: Mapping[str, str], pristine: Path, now_ns: int) -> bool:
    """Return whether the tree `pristine` in the store has every file of the code with the hash in `hashes`, and no
    other user can change it.

    Files are hashed again only if they have changed since the last check. `now_ns` is the current time, because a file
    that was changed just now is not trusted by its time of change alone.
    """
    index, us = CodeIndex(pristine.parent, pristine, now_ns), os.geteuid()
    folders, place = folders_of(file.path for file in code.files), os.fspath(pristine)
    try:
        for file in code.files:
            path = f"{place}/{file.path}"
            status = os.lstat(path)
            if file.link is None and not (status.st_uid == us and stat.S_ISREG(status.st_mode)):
                return False
            if file.link is None and index.digest(file.path, path, status) != hashes[file.path]:
                return False
        whole = all(is_ours_alone(pristine / folder) for folder in folders)
    except OSError:
        return False
    index.save()
    return whole


def _set_aside(path: Path) -> None:
    """Delete the tree at `path`. It is renamed first, so that no process finds a part of it there."""
    aside = new_draft(path.parent)
    os.rename(path, aside)
    remove(aside)
