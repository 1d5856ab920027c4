"""Writing so that a reader, and a machine that lost its power, sees the old or the new, never half."""

import contextlib
import os
import secrets
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from launcher.errors import LaunchError

T = TypeVar("T")
_DRAFT = os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_NOFOLLOW | os.O_CLOEXEC


class Damaged(LaunchError):
    """A record that is there but cannot be one."""


def make_dir(path: Path) -> None:
    """A folder for the user alone, whatever the umask; parents too."""
    if path.is_dir():
        return
    make_dir(path.parent)
    with contextlib.suppress(FileExistsError):
        path.mkdir(mode=0o700)
        path.chmod(0o700)


def sync_dir(path: Path) -> None:
    """Make the names in a folder durable."""
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def write_bytes(path: Path, data: bytes) -> None:
    """Replace the file by these bytes: draft, fsync, rename, fsync of the folder."""
    draft = _write_draft(path.parent, data)
    try:
        os.rename(draft, path)
    except BaseException:
        draft.unlink(missing_ok=True)
        raise
    sync_dir(path.parent)


def write_record(path: Path, record: Any) -> None:
    write_bytes(path, msgspec.json.encode(record) + b"\n")


def create_record(path: Path, record: Any) -> None:
    """As write_record, but the file must not exist: of all that try, one wins, the others get FileExistsError."""
    draft = _write_draft(path.parent, msgspec.json.encode(record) + b"\n")
    try:
        os.link(draft, path)
    finally:
        draft.unlink(missing_ok=True)
    sync_dir(path.parent)


def read_record(path: Path, kind: type[T]) -> T | None:
    """The record, or None where there is none. Raises Damaged."""
    try:
        data = path.read_bytes()
    except (FileNotFoundError, NotADirectoryError):
        return None
    try:
        return msgspec.json.decode(data, type=kind)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise Damaged(f"{path}: not a record of this version: {error}") from error


def append_line(path: Path, record: Any, *, fsync: bool = True) -> None:
    """Add one line in a single write, after mending a line that a killed writer left torn."""
    fd = os.open(path, os.O_CREAT | os.O_RDWR | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        size = os.fstat(fd).st_size
        torn = size > 0 and os.pread(fd, 1, size - 1) != b"\n"
        os.write(fd, (b"\n" if torn else b"") + msgspec.json.encode(record) + b"\n")
        if fsync:
            os.fsync(fd)
    finally:
        os.close(fd)
    if fsync and size == 0:
        sync_dir(path.parent)


def read_lines(path: Path, kind: type[T]) -> list[T]:
    """All whole records of a file of lines; what a killed writer left torn is passed over."""
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return []
    decoder = msgspec.json.Decoder(kind)
    records = []
    for line in data.split(b"\n"):
        with contextlib.suppress(msgspec.MsgspecError, UnicodeDecodeError):
            records.append(decoder.decode(line))
    return records


def _write_draft(folder: Path, data: bytes) -> Path:
    draft = folder / f".tmp-{secrets.token_hex(8)}"
    fd = os.open(draft, _DRAFT, 0o600)
    try:
        try:
            os.fchmod(fd, 0o600)
            view = memoryview(data)
            while view:
                view = view[os.write(fd, view) :]
            os.fsync(fd)
        finally:
            os.close(fd)
    except BaseException:
        draft.unlink(missing_ok=True)
        raise
    return draft
