"""What each file of a project hashed to when it last looked like this: an unchanged project is not read again."""

import contextlib
import hashlib
import os
from pathlib import Path

import msgspec

from launcher.rundir.drafts import new_draft

# A file changed this very moment may change once more without its times telling (git's racy index).
_RACY_NS = 2_000_000_000


class Known(msgspec.Struct, frozen=True, array_like=True):
    size: int
    mtime_ns: int
    ctime_ns: int
    inode: int
    digest: str

    def fits(self, status: os.stat_result) -> bool:
        times = (status.st_mtime_ns, status.st_ctime_ns)
        return (self.size, self.inode) == (status.st_size, status.st_ino) and (self.mtime_ns, self.ctime_ns) == times


class CodeIndex:
    """The cache of one project, kept in the store. Losing it costs time, never correctness."""

    def __init__(self, store: Path, project: Path) -> None:
        self._store = store
        self._file = store / f"index-{hashlib.sha256(os.fsencode(project)).hexdigest()[:16]}"
        self._known = self._read()
        self._fresh: dict[str, Known] = {}

    def digest(self, path: str, status: os.stat_result) -> str | None:
        """The content hash of a file that looks like this, where that is known for sure."""
        known = self._known.get(_key(path))
        if known is None or not known.fits(status):
            return None
        self._fresh[_key(path)] = known
        return known.digest

    def learn(self, path: str, status: os.stat_result, digest: str, now_ns: int) -> None:
        """A file that looked like this before it was read had this hash; too young a one is not to be trusted."""
        if max(status.st_mtime_ns, status.st_ctime_ns) < now_ns - _RACY_NS:
            seen = (status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_ino)
            self._fresh[_key(path)] = Known(*seen, digest)

    def save(self) -> None:
        """Only what this time's files needed: what was deleted is forgotten."""
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

    def _read(self) -> dict[str, Known]:
        with contextlib.suppress(OSError, msgspec.MsgspecError, UnicodeDecodeError):
            return msgspec.json.decode(self._file.read_bytes(), type=dict[str, Known])
        return {}


def _key(path: str) -> str:
    """A name need not be UTF-8, JSON must be."""
    return os.fsencode(path).decode("latin-1")
