"""Compute the digest of a project's code; a file is only read and hashed again if its size, times or inode have
changed.
"""

import contextlib
import errno
import hashlib
import os
import stat
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

import msgspec

from launcher.decoding import decoder_of
from launcher.errors import BadInput
from launcher.run.code.listing import CodeFile, CodeList
from launcher.run.drafts import new_draft
from launcher.run.durable import NOT_JSON

READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
# A file changed this very moment may change once more without its times telling (git's racy index).
RACY_NS = 2_000_000_000
StrPath = str | os.PathLike[str]
_BECAME_SOMETHING_ELSE = (errno.ELOOP, errno.EISDIR, errno.ENOTDIR, errno.ENXIO)


class CodeChanged(BadInput):
    """Raised when a file has changed since it was listed."""

    def __init__(self, what: object, doing: str) -> None:
        hint = "hint: submit again when it is at rest; if it is no code, code.exclude leaves it out"
        super().__init__(f"code: {what}: changed while it was being {doing}", hint)


class KnownFile(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A file's digest, with the size, times and inode that it had when it was hashed."""

    size: int
    mtime_ns: int
    ctime_ns: int
    inode: int
    digest: str

    def fits(self, status: os.stat_result) -> bool:
        """Return whether a file with this status is unchanged since it was hashed."""
        return (
            self.inode == status.st_ino
            and self.size == status.st_size
            and self.mtime_ns == status.st_mtime_ns
            and self.ctime_ns == status.st_ctime_ns
        )


class CodeIndex:
    """The hashes of the files in folder `root`, kept between two uses in a file of the folder `store`. If that file is
    lost, all files are hashed again. `now_ns` is the time at which hashing begins: the hash of a file that changed just
    before is not kept.
    """

    def __init__(self, store: Path, root: Path, now_ns: int) -> None:
        self._store, self._now_ns = store, now_ns
        self._file = store / f"index-{hashlib.sha256(os.fsencode(root)).hexdigest()[:16]}"
        self._known: dict[str, KnownFile] = {}
        self._fresh: dict[str, KnownFile] = {}
        self.hashed_bytes = 0
        with contextlib.suppress(OSError, *NOT_JSON):
            self._known = decoder_of(dict[str, KnownFile]).decode(self._file.read_bytes())

    @property
    def is_empty(self) -> bool:
        """Return whether the index has no hash yet."""
        return not self._known

    def digest(self, name: str, path: StrPath, status: os.stat_result) -> str:
        """Return the content hash of the file at `path`, which the code calls `name`; it is read only if its status has
        changed since it was last hashed.
        """
        return self.known(name, status) or self.learn(name, status, file_hash(path))

    def known(self, name: str, status: os.stat_result) -> str | None:
        """Return the hash of the file `name` if its status is that of an earlier hashing, else None."""
        key = _key(name)
        known = self._known.get(key)
        if known is None or not known.fits(status):
            return None
        self._fresh[key] = known
        return known.digest

    def learn(self, name: str, status: os.stat_result, digest: str, *, at_rest: bool = False) -> str:
        """Record and return `digest`, the hash of the file `name`, which had this status when it was read.

        A file that was changed less than two seconds before the hashing began is not recorded, because another change
        could leave equal times. With `at_rest` the caller knows that no process writes to it, and it is recorded.
        """
        looks = (status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_ino)
        known = KnownFile(*looks, digest)
        key = _key(name)
        if known not in (self._known.get(key), self._fresh.get(key)):
            self.hashed_bytes += known.size
        if at_rest or max(known.mtime_ns, known.ctime_ns) < self._now_ns - RACY_NS:
            self._fresh[key] = known
        return digest

    def save(self) -> None:
        """Write the hashes that were used or made since this index was loaded; others belong to deleted files and are
        dropped.
        """
        if self._fresh == self._known:
            return
        draft = new_draft(self._store)
        try:
            with open(os.open(draft, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, 0o600), "wb") as file:
                file.write(msgspec.json.encode(self._fresh))
            os.rename(draft, self._file)
        except BaseException:
            draft.unlink(missing_ok=True)
            raise


def content_hashes(code: CodeList, doing: str, index: CodeIndex | None = None) -> dict[str, str]:
    """Return the hash of each regular file by its name.

    Raise BadInput for a file that cannot be read or has changed type; `doing` is the verb of its message, such as
    "copied". With an index, a file is not read if the index has its hash for the size, times and inode in `code`.
    """
    hashes = {}
    with readable(code.root, doing):
        for file in code.files:
            if file.link is None:
                listed = index.known(file.path, code.looks[file.path]) if index is not None else None
                hashes[file.path] = listed or _hash_now(code.source(file.path), file, doing, index)
    return hashes


def _hash_now(path: str, file: CodeFile, doing: str, index: CodeIndex | None) -> str:
    """Return the hash of the file at `path`. It is not read if the index has a hash for its present size, times and
    inode.

    Raise CodeChanged, with the verb `doing` in its message, if its size or kind is no longer that of `file`, as it was
    listed.
    """
    status = os.lstat(path)
    if not stat.S_ISREG(status.st_mode) or status.st_size != file.size:
        raise CodeChanged(path, doing)
    return file_hash(path) if index is None else index.digest(file.path, path, status)


def _key(name: str) -> str:
    """Return the file name, which may hold bytes that are not UTF-8, as text that JSON can hold."""
    return name if name.isascii() else os.fsencode(name).decode("latin-1")  # it need not be UTF-8, JSON must be


def tree_digest(files: Iterable[CodeFile], hashes: Mapping[str, str]) -> str:
    """Return one digest for all files together, in whatever order they are given: of their names, links, executable
    bits and contents. `hashes` has the content hash of each regular file by its name.
    """
    tree = hashlib.sha256()
    for file in sorted(files, key=lambda file: os.fsencode(file.path)):
        kind = "link" if file.link is not None else "exec" if file.executable else "file"
        content = os.fsencode(file.link) if file.link is not None else hashes[file.path].encode()
        for part in (os.fsencode(file.path), kind.encode(), content):
            tree.update(len(part).to_bytes(8, "big") + part)
    return tree.hexdigest()


def file_hash(path: StrPath) -> str:
    """Return the SHA-256 of a file's content."""
    with open(path, "rb", opener=lambda name, _: os.open(name, READ)) as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


@contextlib.contextmanager
def readable(path: Path, doing: str) -> Iterator[None]:
    """Turn an OSError in the body, which reads files of the user, into BadInput if a file is missing or may not be
    read, and into CodeChanged if it is no longer a regular file.

    `doing` is the verb of the message, such as "copied"; `path` is named if the error names no file.
    """
    try:
        yield
    except FileNotFoundError as error:
        raise BadInput(f"code: {error.filename or path}: vanished while it was being {doing}") from error
    except PermissionError as error:
        hint = "hint: code.exclude leaves it out"
        raise BadInput(f"code: {error.filename or path}: cannot be read: {error.strerror}", hint) from error
    except OSError as error:
        if error.errno in _BECAME_SOMETHING_ELSE:
            raise CodeChanged(error.filename or path, doing) from error
        raise
