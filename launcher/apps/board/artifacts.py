"""List and read the files that the ranks of a run wrote to `artifacts/`. Such files are not trusted: no link in them is
followed, no name leads out of the folder, and pages among them run no script.
"""

import contextlib
import os
import stat
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import Literal

import msgspec

from launcher.errors import NoSuchRun, Refused
from launcher.run.attempts import read_plan
from launcher.run.layout import RunDir

Kind = Literal["picture", "page", "text", "table", "other"]
FOLDER = "artifacts"
POLICY = (  # of each answer: nothing runs in it, and it asks nobody
    "sandbox; default-src 'none'; style-src 'unsafe-inline'; img-src data:; base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'self'"
)
TYPES: dict[str, tuple[Kind, str]] = {
    ".png": ("picture", "image/png"),
    ".svg": ("picture", "image/svg+xml"),
    ".html": ("page", "text/html; charset=utf-8"),
    ".md": ("text", "text/plain; charset=utf-8"),
    ".csv": ("table", "text/plain; charset=utf-8"),
}
_MOST_FILES = 1000
_MOST_DEEP = 8
_MOST_BYTES = 16 << 20  # of one that is shown
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


class Artifact(msgspec.Struct, frozen=True):
    """A file in a run's `artifacts/`: its path below the run's folder, the kind of its content, its size, and when it
    was written.
    """

    name: str  # its path, relative to the run's folder
    kind: Kind  # of its content: picture, page, text, table or other
    bytes: int
    at: float  # Unix time at which it was written


class Artifacts(msgspec.Struct, frozen=True):
    """The newest files in a run's `artifacts/`, newest first; `more` if there are others. `folder` is the path of
    `artifacts/`, which need not exist.
    """

    folder: str
    files: list[Artifact]
    more: bool  # whether there are others


def artifacts(run: RunDir) -> Artifacts:
    """Return the files written last, at most `_MOST_FILES`, in the run's `artifacts/` on this machine, including those
    fetched from other machines; and whether there are more.
    """
    files = [one for root in _roots(run) for one in _files(run, root)]
    files.sort(key=lambda one: (-one.at, one.name))
    return Artifacts(_shown(run, _roots(run)[0]), files[:_MOST_FILES], len(files) > _MOST_FILES)


def read_artifact(run: RunDir, name: str) -> bytes:
    """Return the content of the file `name`, a path that `artifacts` lists.

    Raise NoSuchRun if it does not exist, and Refused if it has more than 16 MiB, too much to show.
    """
    parts = PurePosixPath(name).parts
    if not parts or len(parts) > _MOST_DEEP + 6 or any(part in ("/", "..", ".") or "\0" in part for part in parts):
        raise NoSuchRun(f"{name[:200]!r}: no such artifact")
    if not any(PurePosixPath(name).is_relative_to(_shown(run, root)) for root in _roots(run)):
        raise NoSuchRun(f"{name[:200]!r}: no such artifact")
    with contextlib.ExitStack() as opened:
        try:
            at = _opened(opened, run.path, _FOLDER, None)
            for part in parts[:-1]:
                at = _opened(opened, Path(part), _FOLDER, at)
            file = _opened(opened, Path(parts[-1]), _FILE, at)
        except OSError:
            raise NoSuchRun(f"{name[:200]!r}: no such artifact") from None
        found = os.fstat(file)
        if not stat.S_ISREG(found.st_mode):
            raise NoSuchRun(f"{name[:200]!r}: no such artifact")
        if found.st_size > _MOST_BYTES:
            raise Refused(f"{name[:200]}: has {found.st_size} bytes, and the board shows {_MOST_BYTES} at most")
        return _content_of(file)


def _content_of(file: int) -> bytes:
    """Return the content of the open file with the descriptor `file`, cut after `_MOST_BYTES` bytes, because the file
    may grow while it is read.
    """
    parts, left = list[bytes](), _MOST_BYTES
    while left and (part := os.read(file, left)):
        parts.append(part)
        left -= len(part)
    return b"".join(parts)


def _opened(stack: contextlib.ExitStack, path: Path, flags: int, folder: int | None) -> int:
    """Open the file `path` with the flags of os.open, relative to the open folder `folder` (None: the working folder),
    and return its descriptor; `stack` closes it.
    """
    fd = os.open(path, flags, dir_fd=folder)
    stack.callback(os.close, fd)
    return fd


def _roots(run: RunDir) -> list[Path]:
    """Return the folders that may have artifacts: that of ranks on this machine, and those fetched from other
    machines.
    """
    begins = read_plan(run, 1).workdir
    inside = PurePosixPath(begins).relative_to(run.code.name) / FOLDER
    fetched = [run.outputs, *sorted(path for path in _entries(run.outputs) if path.is_dir() and not path.is_symlink())]
    return [run.path / begins / FOLDER, *(folder / inside for folder in fetched)]


def _shown(run: RunDir, path: Path) -> str:
    """Return a path of a run as text relative to the run's folder."""
    return path.relative_to(run.path).as_posix()


def _entries(folder: Path) -> list[Path]:
    """Return the paths of all files and folders directly in a folder, or an empty list if it cannot be read."""
    try:
        return [*folder.iterdir()]
    except OSError:
        return []


def _files(run: RunDir, root: Path) -> Iterator[Artifact]:
    """Yield the files below `root`; stop after one more than the board shows."""
    many = 0
    for folder, folders, names in os.walk(root):
        folders.sort()
        if len(Path(folder).relative_to(root).parts) >= _MOST_DEEP or Path(root).is_symlink():
            folders.clear()
            continue
        for name in sorted(names):
            path = Path(folder, name)
            try:
                found = path.lstat()
                shown = _shown(run, path).encode().decode()  # a name that is no text cannot be asked for
            except (OSError, UnicodeError):
                continue
            if stat.S_ISREG(found.st_mode):
                kind = TYPES.get(path.suffix.lower(), ("other", ""))[0]
                yield Artifact(shown, kind, found.st_size, found.st_mtime)
                if (many := many + 1) > _MOST_FILES:
                    return
