"""The form in which a tree of code is sent to another machine: its list of files, and their contents."""

import os
import stat
from collections.abc import Iterator
from pathlib import Path

import msgspec

from launcher.errors import BadInput
from launcher.run.code.hashes import READ, CodeChanged, content_hashes, tree_digest
from launcher.run.code.listing import CodeList, shown

_CHUNK = 1 << 18
_SHOWN = 10


class FileEntry(msgspec.Struct, frozen=True, array_like=True):
    """A file of a tree as it is sent: a regular file, or a symbolic link with its target in `link`.

    Each character of a name stands for one byte, because names need not be UTF-8 but JSON must be.
    """

    path: str
    size: int
    executable: bool
    link: str | None = None


def refuse_links_out(code: CodeList) -> None:
    """Raise BadInput if a link leads to a file that is not sent, because on another machine it would lead nowhere."""
    out = [(file.path, file.link) for file in code.files if file.link is not None and leads_out(file.path, file.link)]
    if out:
        lines = [f"code: {shown(path)} is a link to {shown(link)}, which is not sent" for path, link in out[:_SHOWN]]
        raise BadInput(*lines, "hint: code.exclude leaves it out; data has to be on the cluster already")


def digest_of(code: CodeList) -> str:
    """Return the digest of the listed code: of its files' names, links, executable bits and contents. The files are
    read; raise BadInput if one cannot be read or has changed its type.
    """
    return tree_digest(code.files, content_hashes(code, "sent"))


def entries(code: CodeList) -> tuple[FileEntry, ...]:
    """Return an entry for each file of `code`, in its order. File names and targets of links are in the form in which
    they are sent as JSON: one Latin-1 character for each byte, as a name may not be valid UTF-8.
    """
    return tuple(
        FileEntry(_wired(file.path), file.size, file.executable, None if file.link is None else _wired(file.link))
        for file in code.files
    )


def contents(code: CodeList) -> Iterator[bytes]:
    """Yield the bytes of all regular files, one after the other in the order of `code`, and of each only as many as its
    listed size. Raise CodeChanged if a file is shorter now, or is no longer a regular file that can be opened.
    """
    for file in code.files:
        if file.link is None:
            yield from _content(Path(code.source(file.path)), file.size)


def leads_out(path: str, link: str) -> bool:
    """Return whether the link at `path` of a tree, with the target `link`, is absolute or may lead out of the tree by
    `..`.
    """
    parts = [part for part in link.split("/") if part not in ("", ".")]
    up = next((index for index, part in enumerate(parts) if part != ".."), len(parts))
    # A `..` after a name: the name may be a link itself, so that the result is unknown.
    return not link or link.startswith("/") or ".." in parts[up:] or up > path.count("/")


def _content(path: Path, size: int) -> Iterator[bytes]:
    """Yield the first `size` bytes of a file; raise CodeChanged if it is shorter."""
    try:
        fd = os.open(path, READ)
    except OSError as error:
        raise CodeChanged(path, "sent") from error
    try:
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            raise CodeChanged(path, "sent")
        left = size
        while left:
            piece = os.read(fd, min(_CHUNK, left))
            if not piece:
                raise CodeChanged(path, "sent")
            left -= len(piece)
            yield piece
    finally:
        os.close(fd)


def _wired(name: str) -> str:
    """Return the file name with each of its bytes as one character (Latin-1), because JSON can hold no name that is not
    valid UTF-8.
    """
    return os.fsencode(name).decode("latin-1")
