"""Freezing code: hashed once, kept once, copied into each run, whose ranks may write into their copy as they like.

    project ─ hash what changed ─► store/<digest>/ (pristine, read-only) ─ copy ─► <run>/code/ (private, writable)

The digest names the content: same code, same folder, nothing hashed and nothing stored a second time.
"""

import contextlib
import errno
import hashlib
import os
import stat
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from launcher.errors import BadInput
from launcher.plan.model import FrozenCode
from launcher.rundir.code_index import CodeIndex
from launcher.rundir.code_list import CodeFile, CodeList, list_again
from launcher.rundir.drafts import new_draft, remove, remove_orphans
from launcher.rundir.durable import make_dir, sync_dir
from launcher.rundir.tree_copy import copy_tree, file_hash


@dataclass(frozen=True, slots=True)
class Freezing:
    """What was frozen, and what it cost."""

    code: FrozenCode
    hashed_bytes: int
    stored_bytes: int


class _Changed(BadInput):
    """A file of the project is not what it was a moment ago."""

    def __init__(self, path: Path) -> None:
        hint = "hint: submit again when it is at rest; if it is no code, .gitignore or code.exclude leaves it out"
        super().__init__(f"code: {path}: changed while it was being frozen", hint)


def freeze(code: CodeList, store: Path, target: Path, now_ns: int | None = None, *, fsync: bool = True) -> Freezing:
    """Copy the code into `target`, which must not exist, by way of the store. `fsync`: the target is durable then.

    Raises BadInput for a file that cannot be read, or keeps changing; what was begun of the target is then gone.
    """
    make_dir(store)
    remove_orphans(store)
    now_ns = time.time_ns() if now_ns is None else now_ns
    try:
        frozen = _store(code, store, now_ns)
    except _Changed:
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


def tree_digest(files: Iterable[CodeFile], hashes: Mapping[str, str]) -> str:
    """What these files are called together, with the hash of each regular one's content."""
    tree = hashlib.sha256()
    for file in sorted(files, key=lambda file: os.fsencode(file.path)):
        kind = "link" if file.link is not None else "exec" if file.executable else "file"
        content = os.fsencode(file.link) if file.link is not None else hashes[file.path].encode()
        for part in (os.fsencode(file.path), kind.encode(), content):
            tree.update(len(part).to_bytes(8, "big") + part)
    return tree.hexdigest()


def _store(code: CodeList, store: Path, now_ns: int) -> Freezing:
    """Have this code in the store under its digest."""
    digests, hashed_bytes = _digests(code, store, now_ns)
    digest = tree_digest(code.files, digests)
    kept = _is_whole(code, store / digest)
    if not kept:
        _keep(code, digests, store / digest)
    return Freezing(FrozenCode(digest, len(code.files), code.bytes), hashed_bytes, 0 if kept else code.bytes)


def _digests(code: CodeList, store: Path, now_ns: int) -> tuple[dict[str, str], int]:
    """The content hash of each regular file; only those that changed since the last time are read."""
    index = CodeIndex(store, code.root)
    digests: dict[str, str] = {}
    hashed_bytes = 0
    for file in code.files:
        if file.link is not None:
            continue
        with _readable(code.root / file.path) as path:
            status = path.lstat()
            if not stat.S_ISREG(status.st_mode) or status.st_size != file.size:
                raise _Changed(path)
            known = index.digest(file.path, status)
            digests[file.path] = known or file_hash(path)
        if known is None:
            hashed_bytes += file.size
            index.learn(file.path, status, digests[file.path], now_ns)
    index.save()
    return digests, hashed_bytes


def _is_whole(code: CodeList, pristine: Path) -> bool:
    """Whether the store has all of it; somebody who tidied up by hand may have left a part."""
    try:
        statuses = [(file, (pristine / file.path).lstat()) for file in code.files]
    except (FileNotFoundError, NotADirectoryError):
        return False
    sizes = all(file.link is not None or status.st_size == file.size for file, status in statuses)
    return sizes and pristine.is_dir()


def _keep(code: CodeList, digests: dict[str, str], pristine: Path) -> None:
    """Put the tree into the store, read-only; of two that try, one wins and both are content."""
    draft = new_draft(pristine.parent)
    draft.mkdir(mode=0o700)
    try:
        with _readable(code.root):
            copy_tree(code, code.root, draft, writable=False)
        for path, digest in digests.items():
            if file_hash(draft / path) != digest:
                raise _Changed(code.root / path)
        _put(code, draft, pristine)
    finally:
        remove(draft)
    sync_dir(pristine.parent)


def _put(code: CodeList, draft: Path, pristine: Path) -> None:
    try:
        os.rename(draft, pristine)
    except OSError as error:
        if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
            raise
        if not _is_whole(code, pristine):
            aside = new_draft(pristine.parent)
            os.rename(pristine, aside)
            os.rename(draft, pristine)
            remove(aside)


@contextlib.contextmanager
def _readable(path: Path) -> Iterator[Path]:
    """What the system says of the user's own files, said as the user's problem."""
    try:
        yield path
    except FileNotFoundError as error:
        raise BadInput(f"code: {error.filename or path}: vanished while it was being frozen") from error
    except PermissionError as error:
        hint = "hint: code.exclude leaves it out"
        raise BadInput(f"code: {error.filename or path}: cannot be read: {error.strerror}", hint) from error
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.EISDIR, errno.ENOTDIR):  # a file has become something else
            raise _Changed(Path(error.filename or path)) from error
        raise
