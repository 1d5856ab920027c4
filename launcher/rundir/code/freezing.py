"""Freezing code: hashed once, kept once, copied into each run, whose ranks may write into their copy as they like.

    project ─ hash what changed ─► store/<digest>/ (pristine, read-only) ─ copy ─► <run>/code/ (private, writable)

The digest names the content: same code, same folder, nothing stored a second time. What the store has is only taken
for that code once its own bytes have been hashed: somebody who could write there once may have left something else.
"""

import errno
import os
import stat
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from launcher.plan.model import FrozenCode
from launcher.rundir.code.hashes import READ, CodeChanged, CodeIndex, content_hashes, file_hash, readable, tree_digest
from launcher.rundir.code.listing import CodeList, list_again
from launcher.rundir.drafts import new_draft, remove, remove_orphans
from launcher.rundir.durable import make_dir, naming, sync_dir, sync_files, write_all
from launcher.rundir.ownership import is_ours_alone

_MAKE = os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_NOFOLLOW | os.O_CLOEXEC
_NOT_IN_KERNEL = (errno.ENOSYS, errno.EXDEV, errno.EINVAL, errno.EOPNOTSUPP, errno.EPERM, errno.EBADF)
_CHUNK_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class Freezing:
    """What was frozen, and what it cost."""

    code: FrozenCode
    hashed_bytes: int
    stored_bytes: int


def freeze(code: CodeList, store: Path, target: Path, now_ns: int | None = None, *, fsync: bool = True) -> Freezing:
    """Copy the code into `target`, which must not exist, by way of the store. `fsync`: the target is durable then.

    Raises BadInput for a file that cannot be read, or keeps changing; what was begun of the target is then gone.
    """
    make_dir(store)
    if not is_ours_alone(store):  # made when others could write to the folder that it is in
        _set_aside(store)
        make_dir(store)
    remove_orphans(store)
    now_ns = time.time_ns() if now_ns is None else now_ns
    try:
        frozen = _store(code, store, now_ns)
    except CodeChanged:
        code = list_again(code)
        frozen = _store(code, store, now_ns)
    make_dir(target.parent)
    target.mkdir(mode=0o700)
    try:
        copy_tree(code, store / frozen.code.digest, target, writable=True, fsync=fsync)
    except BaseException:
        remove(target)
        raise
    return frozen


def copy_tree(code: CodeList, source: Path, target: Path, *, writable: bool, fsync: bool = True) -> None:
    """Copy these files, content and executable bit alone, never through a link; durable on return, if that is wanted
    yet."""
    folders = {target}
    for file in code.files:
        place = target / file.path
        if place.parent not in folders:
            make_dir(place.parent)
            folders.update(parent for parent in place.parents if parent.is_relative_to(target))
        if file.link is not None:
            place.symlink_to(file.link)
        else:
            _copy_file(source / file.path, place, 0o400 | (0o200 * writable) | (0o100 * file.executable))
    if fsync:
        sync_files(target, [target / file.path for file in code.files if file.link is None], folders)


def _store(code: CodeList, store: Path, now_ns: int) -> Freezing:
    """Have this code in the store under its digest."""
    index = CodeIndex(store, code.root, now_ns)
    hashes = content_hashes(code, "frozen", index)
    index.save()
    digest = tree_digest(code.files, hashes)
    kept = _is_whole(code, hashes, store / digest, now_ns)
    if not kept:
        _keep(code, hashes, store / digest, now_ns)
    return Freezing(FrozenCode(digest, len(code.files), code.bytes), index.hashed_bytes, 0 if kept else code.bytes)


def _is_whole(code: CodeList, hashes: Mapping[str, str], pristine: Path, now_ns: int) -> bool:
    """Whether the store has all of it, byte for byte, and nobody else can change that."""
    index = CodeIndex(pristine.parent, pristine, now_ns)
    folders = {pristine}
    try:
        for file in code.files:
            path = pristine / file.path
            if path.parent not in folders:
                folders.update(folder for folder in path.parents if folder.is_relative_to(pristine))
            if file.link is None and not _is_kept(path, file.path, hashes[file.path], index):
                return False
        whole = all(map(is_ours_alone, folders))
    except OSError:
        return False
    index.save()
    return whole


def _is_kept(path: Path, name: str, digest: str, index: CodeIndex) -> bool:
    status = path.lstat()
    ours = status.st_uid == os.geteuid() and stat.S_ISREG(status.st_mode)
    return ours and index.digest(name, path, status) == digest


def _keep(code: CodeList, hashes: Mapping[str, str], pristine: Path, now_ns: int) -> None:
    """Put the tree into the store, read-only; of two that try, one wins and both are content."""
    draft = new_draft(pristine.parent)
    draft.mkdir(mode=0o700)
    try:
        with readable(code.root, "frozen"):
            copy_tree(code, code.root, draft, writable=False)
        for path, digest in hashes.items():
            if file_hash(draft / path) != digest:
                raise CodeChanged(code.root / path, "frozen")
        try:
            os.rename(draft, pristine)
        except OSError as error:
            if error.errno not in (errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR):
                raise
            if not _is_whole(code, hashes, pristine, now_ns):
                _set_aside(pristine)
                os.rename(draft, pristine)
    finally:
        remove(draft)
    sync_dir(pristine.parent)


def _set_aside(path: Path) -> None:
    aside = new_draft(path.parent)
    os.rename(path, aside)
    remove(aside)


def _copy_file(source: Path, place: Path, mode: int) -> None:
    """A new file; where the file system can, it shares the blocks until one of the two is written to."""
    with open(source, "rb", opener=lambda name, _: os.open(name, READ)) as reader:
        out = os.open(place, _MAKE, mode)
        try:
            os.fchmod(out, mode)
            with naming(place):
                _copy_bytes(reader.fileno(), out)
        finally:
            os.close(out)


def _copy_bytes(source: int, out: int) -> None:
    left = os.fstat(source).st_size
    try:
        while left > 0 and (copied := os.copy_file_range(source, out, left)):
            left -= copied
    except OSError as error:
        if error.errno not in _NOT_IN_KERNEL:
            raise
        while chunk := os.read(source, _CHUNK_BYTES):
            write_all(out, chunk)
