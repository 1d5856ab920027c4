"""Write files so that a reader, or a machine after a power cut, finds the old content or the new, never half of it. A
draft is a file under a temporary name, which is renamed once it is complete.
"""

import contextlib
import errno
import os
import stat
import zlib
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, Generic, TypeVar

import msgspec

from launcher.decoding import decoder_of
from launcher.errors import Exit, LaunchError
from launcher.run.patience import patiently

T = TypeVar("T")
NOT_JSON = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)  # what bytes that are no record may raise
_DRAFT = os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_NOFOLLOW | os.O_CLOEXEC
_APPEND = os.O_CREAT | os.O_RDWR | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC
# Non-blocking, or a FIFO in the place of a record would hold the reader for ever.
_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_MANY = 100
_PIECE = 1 << 20
_MOST_BYTES = 1 << 29  # of a record or a log of events; a sparse file costs an attacker nothing
_NO_FILE = {errno.ELOOP: "a link", errno.EISDIR: "a folder", errno.ENXIO: "a socket"}


class Sealed(msgspec.Struct, frozen=True):
    """A record with its checksum, used where a flipped bit could go unnoticed and do harm."""

    record: msgspec.Raw
    crc32: int  # of the record's bytes


class Damaged(LaunchError):
    """Raised when a record exists but cannot be decoded."""

    exit_code = Exit.DAMAGED


@dataclass(frozen=True, slots=True)
class Lines(Generic[T]):
    """The records of a file of lines, and the number of damaged lines."""

    records: list[T]
    damaged: int  # invalid lines, except an incomplete last one


def make_dir(path: Path) -> None:
    """Create a folder and its parents, private to the user whatever the umask; raise NotADirectoryError if a file has
    the name. The new names survive a power cut only after `sync_dir` on each parent.
    """
    if path.is_dir():
        return
    make_dir(path.parent)
    try:
        patiently(lambda: path.mkdir(mode=0o700))
    except FileExistsError as error:
        if not path.is_dir():
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), str(path)) from error
    else:
        path.chmod(0o700)


def sync_dir(path: Path) -> None:
    """Flush a folder, so that names added to or removed from it survive a power cut."""
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def sync_files(root: Path, files: Collection[str | Path], folders: Collection[Path]) -> None:
    """Make new files, given by their paths, and the names in these folders durable.

    If that would take hundreds of flushes, flush the whole file system of `root`, which must contain all of them, once
    instead.
    """
    if len(files) + len(folders) > _MANY and _sync_file_system(root):
        return
    for file in files:
        _sync_file(file)
    for folder in folders:
        sync_dir(folder)


def sync_trees(root: Path, trees: Collection[Path]) -> None:
    """Make durable all files in the new folders `trees`, which were written without fsync: one by one or, if they are
    many, by syncing the whole file system of `root`, on which they are.
    """
    found = (Path(folder) / name for tree in trees for folder, _, names in os.walk(tree) for name in (".", *names))
    first = list(islice(found, _MANY + 1))
    if len(first) > _MANY and _sync_file_system(root):
        return
    for path in (*first, *found):
        if path.is_dir():
            sync_dir(path)
        elif not path.is_symlink():
            _sync_file(path)


def write_bytes(path: Path, data: bytes, *, fsync: bool = True) -> None:
    """Replace the content of the file in one step: draft, fsync, rename, fsync of the folder.

    Without `fsync` the caller has to make the folder durable before it tells another process of the file.
    """
    patiently(lambda: _replace(path, data, fsync=fsync))


def _replace(path: Path, data: bytes, *, fsync: bool) -> None:
    """Write a draft and rename it to the path; with `fsync` the new content is durable on return."""
    draft = _write_draft(path, data, fsync=fsync)
    try:
        os.rename(draft, path)
    except BaseException:
        draft.unlink(missing_ok=True)
        raise
    if fsync:
        sync_dir(path.parent)


def write_record(path: Path, record: Any, *, fsync: bool = True) -> None:
    """Replace the file by the record as a line of JSON, durably with `fsync`; if that raises OSError, the old record is
    still there.
    """
    write_bytes(path, _line(record), fsync=fsync)


def create_record(path: Path, record: Any) -> None:
    """Write a record to a new file, durable on return; raise FileExistsError if the file exists. If several processes
    try, exactly one succeeds.
    """
    if not create_records(path.parent, {path: record}):
        raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(path))


def create_records(root: Path, records: Mapping[Path, Any]) -> list[Path]:
    """Create a file for each record in `records`, at the path that is its key; all paths are below the folder `root`.
    Leave files that exist as they are. Return the paths of the created ones, which are durable on return.
    """
    made = list[Path]()
    patiently(lambda: _create(root, {path: one for path, one in records.items() if path not in made}, made))
    return made


def _create(root: Path, records: Mapping[Path, Any], made: list[Path]) -> None:
    """Create a file below `root` for each of `records`, which are by path, unless the file exists. Append the path of
    each created file to `made` at once, also if an error follows; on return the files are durable.
    """
    drafts = list[Path]()
    try:
        for path, record in records.items():
            drafts.append(_write_draft(path, _line(record), fsync=False))
        sync_files(root, drafts, ())
        for path, draft in zip(records, drafts, strict=True):
            with contextlib.suppress(FileExistsError):
                os.link(draft, path)
                made.append(path)
    finally:
        for draft in drafts:
            draft.unlink(missing_ok=True)
    sync_files(root, (), {path.parent for path in made})


def read_record(path: Path, kind: type[T]) -> T | None:
    """Return the record, or None if the file does not exist; raise Damaged if it cannot be decoded."""
    data = read_bytes(path)
    if data is None:
        return None
    try:
        return decoder_of(kind).decode(data)
    except NOT_JSON as error:
        raise Damaged(f"{path}: not a record of this version: {error}") from error


def readable(path: Path, kind: type[T]) -> T | None:
    """Return the record, or None if it is missing or damaged; for callers that must continue without it."""
    with contextlib.suppress(Damaged, OSError):
        return read_record(path, kind)
    return None


def write_sealed(path: Path, record: Any) -> None:
    """Write a record and its checksum as JSON, in place of the old file; `read_sealed` reads it and raises Damaged if
    the checksum does not match.
    """
    data = msgspec.json.encode(record)
    write_record(path, Sealed(msgspec.Raw(data), zlib.crc32(data)))


def read_sealed(path: Path, kind: type[T]) -> T | None:
    """Return the record that `write_sealed` wrote, or None if the file does not exist; raise Damaged if its checksum
    does not match, or if it cannot be decoded.
    """
    sealed = read_record(path, Sealed)
    if sealed is None:
        return None
    if zlib.crc32(sealed.record) != sealed.crc32:
        raise Damaged(f"{path}: its checksum is of another record")
    try:
        return decoder_of(kind).decode(sealed.record)
    except NOT_JSON as error:
        raise Damaged(f"{path}: not a record of this version: {error}") from error


def append_line(path: Path, record: Any, *, fsync: bool = True) -> None:
    """Append the record as one line in a single write, durably with `fsync`; an incomplete line that a killed writer
    left is ended first.
    """
    append_lines(path, [record], fsync=fsync)


def append_lines(path: Path, records: Sequence[Any], *, fsync: bool = True) -> None:
    """Append a line for each record in a single write, durably with `fsync`; an incomplete line that a killed writer
    left is ended first.
    """
    lines, tries = b"".join(map(_line, records)), 0

    def append() -> None:
        """Append the lines; on a second try they may be in the file already."""
        nonlocal tries
        tries += 1
        _append(path, lines, fsync=fsync, again=tries > 1)

    patiently(append)


def _append(path: Path, line: bytes, *, fsync: bool, again: bool) -> None:
    """Append a line to the file, durably with `fsync`; if the file ends within a line, end that one first.

    `again` means that an earlier try failed. If it has written the whole line nevertheless, the same bytes are written
    over it, so that a later fsync covers them, instead of a second time after it.
    """
    fd = _open_to_append(path)
    try:
        size = os.fstat(fd).st_size
        if size == 0:
            os.fchmod(fd, 0o600)
        with naming(path):
            if again and _ends_with(fd, size, line):
                _write_anew(path, size - len(line), line)
            else:
                torn = size > 0 and not _ends_with(fd, size, b"\n")
                write_all(fd, (b"\n" if torn else b"") + line)
            if fsync:
                os.fsync(fd)
    finally:
        os.close(fd)
    if fsync and (size == 0 or again):
        sync_dir(path.parent)


def _ends_with(fd: int, size: int, line: bytes) -> bool:
    """Return whether the file of `size` bytes behind the descriptor ends with the bytes of `line`."""
    return size >= len(line) and os.pread(fd, len(line), size - len(line)) == line


def _write_anew(path: Path, at: int, line: bytes) -> None:
    """Write the bytes `line`, which the file has at offset `at`, once more, because the kernel may drop them after a
    failed fsync.
    """
    fd = os.open(path, os.O_WRONLY | os.O_NOFOLLOW | os.O_CLOEXEC)  # with O_APPEND pwrite would add them once more
    try:
        os.pwrite(fd, line, at)
    finally:
        os.close(fd)


def _open_to_append(path: Path) -> int:
    """Open the file to append to it, creating it if it is missing, and return the descriptor; raise Damaged if it is no
    regular file.
    """
    try:
        fd = os.open(path, _APPEND, 0o600)
    except OSError as error:
        if error.errno not in _NO_FILE:
            raise
        raise Damaged(f"{path}: expected a file, got {_NO_FILE[error.errno]}") from error
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise Damaged(f"{path}: expected a file")
    return fd


def record_in(line: bytes, kind: type[T]) -> T | None:
    """Return the record in a line of JSON, or None if the line is incomplete or does not fit the type `kind`."""
    try:
        return decoder_of(kind).decode(line)
    except NOT_JSON:
        return None


def scan_lines(path: Path, kind: type[T]) -> Lines[T]:
    """Return all valid records of a file of lines, and the number of invalid lines; a file that does not exist has none
    of both.
    """
    data = read_bytes(path)
    if data is None:
        return Lines([], 0)
    decoder = decoder_of(kind)
    records: list[T] = []
    damaged = 0
    whole, _, last = data.rpartition(b"\n")
    for line in filter(None, whole.split(b"\n")):
        try:
            records.append(decoder.decode(line))
        except NOT_JSON:
            damaged += 1
    # What follows the last newline is being written, or its writer was killed: only a whole record counts.
    with contextlib.suppress(*NOT_JSON):
        records += [decoder.decode(last)] if last else []
    return Lines(records, damaged)


def read_lines(path: Path, kind: type[T]) -> list[T]:
    """Return all valid records of a file of lines, or an empty list if it does not exist; invalid lines are skipped."""
    return scan_lines(path, kind).records


def _line(record: Any) -> bytes:
    """Return the record as one line of JSON in UTF-8, with the newline at its end."""
    return msgspec.json.encode(record) + b"\n"


def read_bytes(path: Path) -> bytes | None:
    """Return the content of a file, or None if it does not exist; raise Damaged if it is not a regular file.

    No link is followed.
    """
    try:
        fd = os.open(path, _READ)
        try:
            if (size := os.fstat(fd).st_size) > _MOST_BYTES:
                raise Damaged(f"{path}: expected at most {_MOST_BYTES >> 20} MiB, got {size >> 20}")
            data = os.read(fd, size + 1)
            while len(data) != size and (more := os.read(fd, _PIECE)):  # it grows meanwhile
                data += more
            return data
        finally:
            os.close(fd)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        if error.errno not in _NO_FILE:
            raise
        raise Damaged(f"{path}: expected a file, got {_NO_FILE[error.errno]}") from error


def _write_draft(path: Path, data: bytes, *, fsync: bool = True) -> Path:
    """Write `data` to a draft in the folder of `path`, and return the draft's path; with `fsync` it is durable."""
    draft = path.parent / f".tmp-{os.urandom(8).hex()}"
    with naming(path):
        fd = os.open(draft, _DRAFT, 0o600)
        try:
            try:
                os.fchmod(fd, 0o600)
                write_all(fd, data)
                if fsync:
                    os.fsync(fd)
            finally:
                os.close(fd)
        except BaseException:
            draft.unlink(missing_ok=True)
            raise
    return draft


def _sync_file(path: str | Path) -> None:
    """Make the file's content durable."""
    fd = os.open(path, _READ)
    try:
        with naming(path):
            os.fsync(fd)
    finally:
        os.close(fd)


def _sync_file_system(path: Path) -> bool:
    """Flush the whole file system of `path` and return True, or return False if the C library has no `syncfs` or the
    call fails.
    """
    import ctypes  # late: only many files need it, and Python has no os.syncfs

    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        return bool(ctypes.CDLL(None).syncfs(fd) == 0)
    except AttributeError:  # a C library without it
        return False
    finally:
        os.close(fd)


def write_all(fd: int, data: bytes) -> None:
    """Write all of `data`; after a short write, write the remainder, so that the error of a full disk is raised."""
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]


@contextlib.contextmanager
def naming(path: str | Path) -> Iterator[None]:
    """Put the file's name into an OSError of the body: the error of a call on a descriptor names no file, and that of a
    rename only a draft.
    """
    try:
        yield
    except OSError as error:
        error.filename = str(path)
        raise
