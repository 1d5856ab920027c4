"""Copy the files of a project's code: content and executable bit alone. Each file is read once, however many copies are
made.
"""

import contextlib
import errno
import hashlib
import os
import stat
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from launcher.run.code.hashes import READ, CodeChanged
from launcher.run.code.listing import CodeFile, CodeList
from launcher.run.durable import make_dir, naming, sync_files, write_all

Watch = Callable[[Sequence[CodeFile]], Iterable[CodeFile]]  # gives the files on, and sees how far it is
_MAKE = os.O_CREAT | os.O_EXCL | os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC
_NOT_IN_KERNEL = (errno.ENOSYS, errno.EXDEV, errno.EINVAL, errno.EOPNOTSUPP, errno.EPERM, errno.EBADF)
_CHUNK_BYTES = 1 << 20
_SMALL_BYTES = 1 << 16  # of a file that is copied sooner than blocks of it can be shared


class NewTree:
    """A folder into which code is copied, which exists and which no other process uses yet. Files created in it can be
    read by their user alone, and written only if the tree is `writable`.
    """

    def __init__(self, root: Path, *, writable: bool) -> None:
        self.root, self._write = root, 0o200 * writable
        self._folders = {""}
        self._kept: dict[int, bool] = {}  # by mode: whether a file gets it, whatever umask and ACL there are

    def place(self, path: str) -> str:
        """Return the path at which the tree keeps the code file `path`, and create the folder that is to contain it."""
        folder = os.path.dirname(path)
        if folder not in self._folders:
            make_dir(self.root / folder)
            while folder not in self._folders:
                self._folders.add(folder)
                folder = os.path.dirname(folder)
        return f"{self.root}/{path}"

    def create(self, file: CodeFile) -> int:
        """Create the file empty, executable if the listed file is, and return a descriptor open for writing."""
        mode = 0o400 | self._write | (0o100 * file.executable)
        out = os.open(self.place(file.path), _MAKE, mode)
        if mode not in self._kept:
            self._kept[mode] = stat.S_IMODE(os.fstat(out).st_mode) == mode
        if not self._kept[mode]:
            os.fchmod(out, mode)
        return out

    def sync(self, files: Iterable[CodeFile]) -> None:
        """Flush the listed files and the tree's folders to disk, so that they survive a power cut."""
        made = [f"{self.root}/{file.path}" for file in files if file.link is None]
        sync_files(self.root, made, [self.root / folder for folder in self._folders])


def copy_tree(code: CodeList, source: Path, target: Path, *, fsync: bool = True, watch: Watch = iter) -> None:
    """Copy the listed files from `source` into the new folder `target`, and follow no link.

    The copies are writable; with `fsync` they are durable on return. The files are iterated through `watch`, which
    can report progress.
    """
    tree = NewTree(target, writable=True)
    for file in watch(code.files):
        if file.link is not None:
            os.symlink(file.link, tree.place(file.path))
            continue
        reader = os.open(f"{source}/{file.path}", READ)
        try:
            _write(tree, file, reader)
        finally:
            os.close(reader)
    if fsync:
        tree.sync(code.files)


class CopiedFile(NamedTuple):
    """A regular file that was copied: its path, its digest, its status when it was read (`looked`), and the status of
    its copy (`kept`), the first one if there are two.
    """

    path: str
    digest: str  # of the bytes that were read and written
    looked: os.stat_result
    kept: os.stat_result  # of the first copy


def copy_hashed(code: CodeList, first: NewTree, second: NewTree | None, watch: Watch = iter) -> Iterator[CopiedFile]:
    """Copy the listed files into the tree `first`, and into `second` unless it is None; yield each copied file.

    Raise CodeChanged for a file that has changed since it was listed. The files are iterated through `watch`, which can
    report progress.
    """
    for file in watch(code.files):
        if file.link is not None:
            for tree in filter(None, (first, second)):
                os.symlink(file.link, tree.place(file.path))
            continue
        path = code.source(file.path)
        with _closing(os.open(path, READ)) as reader, _closing(first.create(file)) as out:
            looked = os.fstat(reader)
            if not stat.S_ISREG(looked.st_mode):
                raise CodeChanged(path, "frozen")
            with naming(first.place(file.path)):
                digest = _write_hashed(reader, out, file.size)
            kept = os.fstat(out)
            if looked.st_size != file.size or kept.st_size != file.size:
                raise CodeChanged(path, "frozen")
            if second is not None:
                _write(second, file, out)
        yield CopiedFile(file.path, digest, looked, kept)


@contextlib.contextmanager
def _closing(fd: int) -> Iterator[int]:
    """Yield the descriptor, and close it after the body."""
    try:
        yield fd
    finally:
        os.close(fd)


def _write_hashed(source: int, out: int, size: int) -> str:
    """Copy up to `size` bytes, fewer if the file ends before, from descriptor `source` to descriptor `out`, and return
    the SHA-256 digest of those copied.
    """
    hashed, left = hashlib.sha256(), size
    while left > 0 and (chunk := os.read(source, min(left, _CHUNK_BYTES))):
        hashed.update(chunk)
        write_all(out, chunk)
        left -= len(chunk)
    return hashed.hexdigest()


def _write(tree: NewTree, file: CodeFile, source: int) -> None:
    """Write a file's content, read from descriptor `source`, into the tree; a large file shares its disk blocks with
    the source if the file system can do so.
    """
    with naming(tree.place(file.path)):
        out = tree.create(file)
        try:
            done = 0
            while file.size > _SMALL_BYTES and (copied := _share(source, out, done, file.size - done)):
                done += copied
            while done < file.size and (chunk := os.pread(source, min(file.size - done, _CHUNK_BYTES), done)):
                write_all(out, chunk)
                done += len(chunk)
        finally:
            os.close(out)


def _share(source: int, out: int, begin: int, size: int) -> int:
    """Copy up to `size` bytes from offset `begin`, from descriptor `source` to `out`, within the kernel, and return how
    many; 0 means the end of the file, or that the kernel cannot.
    """
    try:
        return os.copy_file_range(source, out, size, offset_src=begin)
    except OSError as error:
        if error.errno not in _NOT_IN_KERNEL:
            raise
        return 0
