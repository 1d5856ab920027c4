"""Write large files past the page cache, which costs more to fill than the disk write if they are not read soon."""

import ctypes
import errno
import fcntl
import os
import threading
from collections.abc import Callable

DIRECT_BYTES = 64 << 20  # smaller parts may be read again in a moment, by a rank that was replaced
PAGE_BYTES = 4096
_PIECE_BYTES = 32 << 20


def write_direct(
    fd: int, view: memoryview, at: int, hashed: Callable[[memoryview], object], after_piece: Callable[[], None]
) -> int:
    """Write the view with O_DIRECT, except a last part of less than a page; return how many bytes were written.

    The bytes go to the descriptor's present offset, which the caller passes as `at`. Returns 0, having written nothing,
    for a small (less than 64 MiB) or unaligned view, or if the file system has no O_DIRECT; the caller writes the rest.
    `hashed` is called once, in a second thread, with all bytes to be written, as the CPU is idle while the disk works.
    `after_piece` is called after each piece of at most 32 MiB.
    """
    size = len(view) - len(view) % PAGE_BYTES
    if (
        len(view) < DIRECT_BYTES
        or at % PAGE_BYTES
        or view.readonly
        or ctypes.addressof(ctypes.c_char.from_buffer(view)) % PAGE_BYTES
    ):
        return 0
    if not _set_direct(fd, on=True):
        return 0
    hashing = threading.Thread(target=hashed, args=(view[:size],), name="hash", daemon=True)
    hashing.start()
    try:
        done = _write_pieces(fd, view[:size], after_piece)
        _set_direct(fd, on=False)
        while done < size:
            done += os.write(fd, view[done : min(done + _PIECE_BYTES, size)])
            after_piece()
    finally:
        hashing.join()
    return size


def _write_pieces(fd: int, view: memoryview, after_piece: Callable[[], None]) -> int:
    """Write `view` at the descriptor's offset past the page cache, and return how many bytes were written.

    `after_piece` is called after each piece of at most 32 MiB. The number is less than the size of `view` if the disk
    takes such writes only in larger blocks; the caller writes the rest. Any other failed write raises OSError.
    """
    done = 0
    while done < len(view):
        try:
            done += os.write(fd, view[done : done + _PIECE_BYTES])
        except OSError as error:
            if error.errno == errno.EINVAL:  # a disk with larger blocks, or a write that was cut short
                break
            raise
        after_piece()
    return done


def _set_direct(fd: int, *, on: bool) -> bool:
    """Turn O_DIRECT on or off for a descriptor; return False if the file system does not support it."""
    flags = fcntl.fcntl(fd, fcntl.F_GETFL)
    try:
        fcntl.fcntl(fd, fcntl.F_SETFL, flags | os.O_DIRECT if on else flags & ~os.O_DIRECT)
    except OSError as error:
        if error.errno == errno.EINVAL:
            return False
        raise
    return True
