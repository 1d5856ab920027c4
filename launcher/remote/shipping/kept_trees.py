"""Store trees of code that another machine sends, each under its digest, either completely or not at all."""

import contextlib
import errno
import hashlib
import os
import shutil
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from launcher.errors import BadInput
from launcher.remote.shipping.tree import FileEntry, digest_of, leads_out
from launcher.run import drafts
from launcher.run.code.hashes import CodeChanged, tree_digest
from launcher.run.code.listing import CodeFile, list_frozen, shown
from launcher.run.code.names import NEVER
from launcher.run.durable import make_dir, naming, sync_dir, sync_files, write_all

_MOST_FILES = 100_000
_LONGEST_NAME, _LONGEST_PATH = 255, 3000  # leaves room for the folders that a tree comes to be in
_CHUNK = 1 << 18
_MAKE = os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_NOFOLLOW | os.O_CLOEXEC
_KEPT_TREES, _KEPT_S = 20, 86_400.0
IDLE_S = 3600.0  # what was used so lately may be on its way to become a run's

Read = Callable[[int], bytes]


def have(projects: Path, digest: str) -> bool:
    """Return whether `projects`, the folder of trees, has the tree of this digest, and if so mark the tree as used now.
    Every byte of it is read and compared, because scratch file systems delete old files. Raise BadInput if `digest` is
    not 64 hex digits.
    """
    place = tree(projects, digest)
    with contextlib.suppress(BadInput, FileNotFoundError, NotADirectoryError):
        if digest_of(list_frozen(place)) == digest:
            os.utime(place)
            return True
    return False


def keep(projects: Path, digest: str, files: Sequence[FileEntry], read: Read, *, links_out: bool = False) -> Path:
    """Store the tree `files` under its digest in `projects`, the folder of trees, and return its path; a complete tree
    that is there already stays. `read` gets a number of bytes and returns at most so many of the next contents.

    `links_out` permits links that lead out of the tree. Nothing is written through any link. Raise BadInput for an
    invalid tree, or for contents that do not have this digest (CodeChanged), and OSError if it cannot be written.
    """
    listed = _checked(files, links_out=links_out)
    place = tree(projects, digest)
    make_dir(projects)
    drafts.remove_orphans(projects)
    draft = drafts.new_draft(projects)
    draft.mkdir(mode=0o700)
    try:
        if _write(draft, listed, read) != digest:
            raise CodeChanged("a file", "sent")
        _put(draft, place)
    finally:
        drafts.remove(draft)
    sync_dir(projects)
    return place


def tree(projects: Path, digest: str) -> Path:
    """Return the path in `projects`, the folder of trees, of the tree with this digest, whether it exists or not; raise
    BadInput if `digest` is not 64 hex digits.
    """
    if not _is_digest(digest):
        raise BadInput("code: expected a digest of 64 hex digits")
    return projects / digest


def idle(projects: Path, now: float) -> list[Path]:
    """Return the trees in `projects`, the folder of trees, that no submit has used in the last hour before `now`. Runs
    have copies of their own, and a later submit sends its tree again.
    """
    found = list[Path]()
    with contextlib.suppress(FileNotFoundError), os.scandir(projects) as entries:
        found = [Path(one.path) for one in entries if _is_digest(one.name) and one.stat().st_mtime < now - IDLE_S]
    return sorted(found)


def tidy(projects: Path, now: float) -> None:
    """Remove the trees in `projects`, the folder of trees, that no submit has used for a day before `now`, except the
    20 newest; each run has its own copy of its code.
    """
    with contextlib.suppress(FileNotFoundError), os.scandir(projects) as found:
        kept = [(entry.stat().st_mtime, entry.path) for entry in found if _is_digest(entry.name)]
        for used_at, path in sorted(kept, reverse=True)[_KEPT_TREES:]:
            if used_at < now - _KEPT_S:
                shutil.rmtree(path, ignore_errors=True)


def _checked(files: Sequence[FileEntry], *, links_out: bool) -> tuple[CodeFile, ...]:
    """Return the files, with decoded names, if they can be written into an empty folder without leaving it; else raise
    BadInput.

    `links_out` permits links that lead out of it.
    """
    if len(files) > _MOST_FILES:
        raise BadInput(f"code: more than {_MOST_FILES} files")
    listed = tuple(_unwired(file) for file in files)
    names = {file.path for file in listed}
    if len(names) != len(listed):
        raise BadInput("code: two files of the same name")
    for file in listed:
        _check_name(file.path)
        if file.link is not None and not links_out and leads_out(file.path, file.link):
            raise BadInput(f"code: {shown(file.path)} is a link that leads out")
        # Neither through a link nor through a file: what others are inside of is made as a folder.
        if any(parent in names for parent in _parents(file.path)):
            raise BadInput(f"code: {shown(file.path)} is inside something that is no folder")
    return listed


def _check_name(path: str) -> None:
    """Raise BadInput unless the path is the name of a file within a project."""
    parts = path.split("/")
    if "\0" in path or {"", ".", ".."} & set(parts) or NEVER & set(parts):
        raise BadInput(f"code: {shown(path)} is no name of a file in a project")
    if max(len(os.fsencode(part)) for part in parts) > _LONGEST_NAME or len(os.fsencode(path)) > _LONGEST_PATH:
        raise BadInput(f"code: {shown(path[:80])}... is too long a name")


def _write(root: Path, files: Iterable[CodeFile], read: Read) -> str:
    """Write all files durably below `root`; return the digest of the tree that was written, for the caller to compare.
    `read` returns the next bytes of the files' contents, in their order, at most as many as its argument says.

    Raise OSError if a file cannot be written; files that were written before stay.
    """
    folders = {root}
    hashes: dict[str, str] = {}
    listed = tuple(files)
    for file in listed:
        place = root / file.path
        if place.parent not in folders:
            make_dir(place.parent)
            folders.update(parent for parent in place.parents if parent.is_relative_to(root))
        if file.link is not None:
            place.symlink_to(file.link)
        else:
            hashes[file.path] = _write_file(place, file, read)
    sync_files(root, [root / path for path in hashes], folders)
    return tree_digest(listed, hashes)


def _write_file(place: Path, file: CodeFile, read: Read) -> str:
    """Write one file to `place`, readable by the user alone; return the SHA-256 digest of its content. The caller syncs
    it.

    `read` returns the next bytes that the other machine sends, at most as many as its argument says.
    """
    content = hashlib.sha256()
    fd = os.open(place, _MAKE, 0o400 | (0o100 * file.executable))
    try:
        with naming(place):
            os.fchmod(fd, 0o400 | (0o100 * file.executable))
            left = file.size
            while left:
                piece = read(min(_CHUNK, left))
                write_all(fd, piece)
                content.update(piece)
                left -= len(piece)
    finally:
        os.close(fd)
    return content.hexdigest()


def _put(draft: Path, place: Path) -> None:
    """Rename the draft to `place`; if a tree exists there, keep it if it is complete, else replace it."""
    try:
        os.rename(draft, place)
    except OSError as error:
        if error.errno not in (errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR):
            raise
        if have(place.parent, place.name):
            return  # another process was quicker
        aside = drafts.new_draft(place.parent)
        os.rename(place, aside)
        os.rename(draft, place)
        drafts.remove(aside)


def _is_digest(name: str) -> bool:
    """Return whether the name has the form of a tree's digest."""
    return len(name) == 64 and set(name) <= set("0123456789abcdef")


def _parents(path: str) -> list[str]:
    """Return the paths of the folders above a relative path, the outermost first: `a` and `a/b` for `a/b/c`."""
    parts = path.split("/")
    return ["/".join(parts[:end]) for end in range(1, len(parts))]


def _unwired(file: FileEntry) -> CodeFile:
    """Return the file with its name decoded; in JSON each byte of a name is one character (Latin-1), as names need not
    be Unicode. Raise BadInput if the file's entry is invalid.
    """
    try:
        path, link = (None if name is None else os.fsdecode(name.encode("latin-1")) for name in (file.path, file.link))
    except UnicodeEncodeError:
        raise BadInput("code: a name that is no bytes") from None
    if path is None or file.size < 0 or "\0" in (link or ""):
        raise BadInput("code: a file that cannot be")
    return CodeFile(path, file.size, file.executable, link)
