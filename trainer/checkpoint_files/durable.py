"""Write and read files that are complete or absent: exclusive creation, hashing, fsync of file and folder."""

import contextlib
import errno
import os
import stat
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import xxhash

from trainer.checkpoint_files.direct import write_direct
from trainer.errors import CheckpointDamaged

PIECE_BYTES = 8 << 20  # at most so much is written at once
_READ_BYTES = 1 << 20  # what a core's own cache holds is hashed fastest
_CREATE = os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_NOFOLLOW | os.O_CLOEXEC
# Non-blocking, or a FIFO in the place of a file would hold the reader for ever.
_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_SMALL_LIMIT = 1 << 30
_NO_FILE = (errno.ELOOP, errno.ENXIO, errno.ENODEV, errno.ENOTDIR, errno.EISDIR)
_BAD_DISK = (errno.EIO, errno.EBADMSG, errno.EUCLEAN)


@dataclass(frozen=True, slots=True)
class Written:
    """Size and digest (XXH3) of a file that is on disk."""

    size: int
    digest: str


def write_new(
    path: Path, parts: Iterable[bytes | memoryview], after_piece: Callable[[], None] = lambda: None
) -> Written:
    """Write `parts`, in order, into a file that must not exist yet, and sync it to disk; return its size and digest.

    Its name is durable only after `sync_folder`. `after_piece` is called after each piece. Raises OSError,
    FileExistsError for an existing file. Do not retry a file after an error: the kernel may have marked pages clean
    that never reached the disk.
    """
    digest, size = xxhash.xxh3_128(), 0
    fd = os.open(path, _CREATE, 0o600)
    try:
        os.fchmod(fd, 0o600)
        for part in parts:
            view = memoryview(part)
            if view.nbytes == 0:
                continue  # with a zero in its shape it cannot be cast
            view = view.cast("B")
            for begin in range(write_direct(fd, view, size, digest.update, after_piece), len(view), PIECE_BYTES):
                piece = view[begin : begin + PIECE_BYTES]
                digest.update(piece)
                _write_all(fd, piece)
                after_piece()
            size += len(view)
        os.fsync(fd)
    except BaseException:
        os.close(fd)
        raise
    os.close(fd)  # outside of the try: a close that fails (NFS, quota) is a write that failed
    return Written(size, digest.hexdigest())


def sync_folder(path: Path) -> None:
    """Sync a folder to disk, so that its names survive a power cut."""
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def make_folder(path: Path) -> None:
    """Make a folder for the user alone, and its parents, unless they exist, and sync them to disk. Raises OSError."""
    if not path.is_dir():
        if not path.parent.is_dir():
            make_folder(path.parent)
        try:
            path.mkdir(mode=0o700)
            path.chmod(0o700)  # whatever the umask
        except FileExistsError:
            if not path.is_dir():
                raise
    # Also where it exists already: the process that made it may have been killed before this.
    with contextlib.suppress(PermissionError):  # a folder above that only others may list
        sync_folder(path.parent)


def read_small(path: Path) -> bytes:
    """Return the contents of a file that is read in one piece. Raises CheckpointDamaged if it is over 1 GiB."""
    with os.fdopen(open_to_read(path), "rb") as file:
        size = os.fstat(file.fileno()).st_size
        if size > _SMALL_LIMIT:
            raise CheckpointDamaged(f"{path}: expected at most {_SMALL_LIMIT} bytes, got {size}")
        return file.read(size + 1)  # by one more, so that its end is seen and not trusted


def open_to_read(path: Path) -> int:
    """Return the descriptor of a regular file. Raises CheckpointDamaged for a link, folder or device in its place."""
    try:
        fd = os.open(path, _READ)
    except OSError as error:
        if error.errno in _NO_FILE:
            raise CheckpointDamaged(f"{path}: expected a file: {error.strerror}") from error
        raise
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise CheckpointDamaged(f"{path}: expected a file")
    return fd


def read_into(path: Path, size: int, digest: str, places: Iterable[tuple[int, memoryview]]) -> None:
    """Read a file once, fill `places` from it, and compare it with `size` and `digest`.

    Each place is an offset with the memory to fill, in the order of the file and without overlap; the next one is asked
    for when the one before is full. `digest` is the hash of the whole file, with the bytes between the places. Raises
    CheckpointDamaged if anything differs, and then the memory has undefined contents.
    """
    with unreadable_is_damaged(path), opened(path) as fd:
        found = os.fstat(fd).st_size
        if found != size:
            raise CheckpointDamaged(f"{path}: expected {size} bytes, got {found}")
        reading = _Reading(path, fd)
        for at, place in places:
            if at < reading.at or at + len(place) > size:
                raise CheckpointDamaged(f"{path}: its parts overlap, or lie beyond its end")
            reading.skip_to(at)
            reading.fill(place)
        reading.skip_to(size)
    if reading.hashed.hexdigest() != digest:
        raise CheckpointDamaged(f"{path}: its checksum is not the one that was written down")


def hash_file(path: Path, size: int, digest: str) -> None:
    """Read every byte of a file, and raise CheckpointDamaged if its size is not `size` or its digest not `digest`."""
    read_into(path, size, digest, ())


class _Reading:
    """A file that is read from its first byte to its last, hashed on the way."""

    def __init__(self, path: Path, fd: int) -> None:
        self.at, self.hashed = 0, xxhash.xxh3_128()
        self._path, self._fd = path, fd
        self._unwanted = memoryview(b"")

    def skip_to(self, end: int) -> None:
        """Read and hash everything up to offset `end`, without keeping it.

        Raises CheckpointDamaged if the file ends before.
        """
        if end - self.at > len(self._unwanted):
            self._unwanted = memoryview(bytearray(min(end - self.at, _READ_BYTES)))
        while self.at < end:
            self.fill(self._unwanted[: end - self.at])

    def fill(self, place: memoryview) -> None:
        """Fill `place` with the next bytes of the file, and hash them.

        Raises CheckpointDamaged if the file ends before `place` is full.
        """
        done = 0
        while done < len(place):
            piece = place[done : done + _READ_BYTES]
            got = os.preadv(self._fd, [piece], self.at)
            if got == 0:
                raise CheckpointDamaged(f"{self._path}: ended after {self.at} bytes")
            self.hashed.update(piece[:got])
            self.at += got
            done += got


@contextlib.contextmanager
def opened(path: Path) -> Iterator[int]:
    """Open a regular file for reading in this context, which gets the descriptor.

    Raises CheckpointDamaged for a link, folder or device in its place.
    """
    fd = open_to_read(path)
    try:
        yield fd
    finally:
        os.close(fd)


def read_exactly(fd: int, view: memoryview, at: int) -> memoryview:
    """Fill the view from offset `at` and return it. Raises CheckpointDamaged if the file is too short."""
    done = 0
    while done < len(view):
        got = os.preadv(fd, [view[done:]], at + done)
        if got == 0:
            raise CheckpointDamaged("a file of a checkpoint became shorter while it was read")
        done += got
    return view


@contextlib.contextmanager
def unreadable_is_damaged(path: Path) -> Iterator[None]:
    """Raise CheckpointDamaged in place of errors of a bad disk (EIO, EBADMSG, EUCLEAN) in this context.

    Other OSErrors pass through. Callers try an older checkpoint after CheckpointDamaged.
    """
    try:
        yield
    except OSError as error:
        if error.errno in _BAD_DISK:
            raise CheckpointDamaged(f"{path}: cannot be read: {error.strerror}") from error
        raise


def _write_all(fd: int, piece: memoryview) -> None:
    """Write all of the piece, in several writes if need be."""
    while piece:
        piece = piece[os.write(fd, piece) :]
