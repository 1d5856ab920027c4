"""Copying listed files: content and the executable bit alone, durable, and never through a link."""

import errno
import hashlib
import io
import os
from pathlib import Path

from launcher.rundir.code_list import CodeList
from launcher.rundir.durable import make_dir, naming, sync_files, write_all

_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_MAKE = os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_NOFOLLOW | os.O_CLOEXEC
_NOT_IN_KERNEL = (errno.ENOSYS, errno.EXDEV, errno.EINVAL, errno.EOPNOTSUPP, errno.EPERM, errno.EBADF)
_CHUNK_BYTES = 1 << 20


def copy_tree(code: CodeList, source: Path, target: Path, *, writable: bool, fsync: bool = True) -> None:
    """Copy these files from one folder to another; all are on disk on return, if that is wanted yet."""
    folders = {target}
    for file in code.files:
        place = target / file.path
        if place.parent not in folders:
            make_dir(place.parent)
            folders.update(parent for parent in place.parents if parent.is_relative_to(target))
        if file.link is not None:
            place.symlink_to(file.link)
        else:
            copy_file(source / file.path, place, 0o400 | (0o200 * writable) | (0o100 * file.executable))
    if fsync:
        sync_files(target, [target / file.path for file in code.files if file.link is None], folders)


def copy_file(source: Path, place: Path, mode: int) -> None:
    """A new file; where the file system can, it shares the blocks until one of the two is written to."""
    with _open(source) as reader:
        out = os.open(place, _MAKE, mode)
        try:
            os.fchmod(out, mode)
            with naming(place):
                _copy_bytes(reader.fileno(), out)
        finally:
            os.close(out)


def file_hash(path: Path) -> str:
    with _open(path) as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


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


def _open(path: Path) -> io.BufferedReader:
    return open(path, "rb", opener=lambda name, _: os.open(name, _READ))
