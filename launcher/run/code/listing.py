"""List the files of a project that are its code, with their sizes; the spec may add some and leave some out."""

import os
import stat
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise
from pathlib import Path

import msgspec

from launcher.errors import BadInput
from launcher.run.code.globs import Glob
from launcher.run.code.names import NEVER, code_names, git_names, walk
from launcher.run.code.own_packages import packages_in
from launcher.run.registry import runs_root
from launcher.spec.model import Code

_SHOWN = 5
_MOST_OF_IT = 0.9
_IMPORTED = ("/", ".py", ".so")  # what git ignores of a package all the same: `_version.py`, a compiled module


class CodeFile(msgspec.Struct, frozen=True, gc=False):
    """A file of a project's code: a regular file, or a symbolic link with its target in `link`."""

    path: str  # relative to the root; os.fsencode gives back its bytes
    size: int
    executable: bool
    link: str | None = None


@dataclass(frozen=True)
class CodeList:
    """The files that make up a project's code, sorted.

    `looks` has the status that each regular file had when it was listed. `beside` has the files that are read from
    elsewhere than below `root`. The keys of both are names in the code, as in `CodeFile.path`.
    """

    root: Path  # the project's folder
    files: tuple[CodeFile, ...]
    looks: Mapping[str, os.stat_result] = field(default_factory=dict, compare=False)  # status when it was listed
    beside: Mapping[str, Path] = field(default_factory=dict)  # the path from which such a file is read

    @cached_property
    def bytes(self) -> int:
        """Return the total size of all files."""
        return sum(file.size for file in self.files)

    def source(self, path: str) -> str:
        """Return the path from which the file named `path` in the code is read."""
        return os.fspath(self.beside[path]) if path in self.beside else f"{self.root}/{path}"


def list_code(project: Path, code: Code, own_folders: Sequence[str] = ()) -> CodeList:
    """Return the list of a project's code, as `code` of the spec includes and excludes files.

    In `own_folders`, the folders of the project's own packages, importable files are listed even if git ignores them.
    Raise BadInput if the code is larger than the spec allows.
    """
    runs = _runs_inside(project)
    excluded = [Glob(pattern) for pattern in code.exclude]

    def skip(name: str) -> bool:
        """Return whether the file or folder is left out."""
        return any(glob.matches(name) for glob in excluded) or (runs is not None and f"{name}/".startswith(runs))

    names = code_names(project, skip)
    for pattern in code.include:
        names |= {name for name in _included(project, pattern) if not skip(name)}
    for package in packages_in(project, own_folders, names):
        names |= walk(project, package, lambda name: skip(name) or not name.endswith(_IMPORTED))
    found = _listed(project, names)
    if found.bytes > code.max_bytes:
        raise _too_large(project, {file.path: file.size for file in found.files}, code.max_bytes)
    return found


def list_frozen(folder: Path) -> CodeList:
    """Return the list of all files in a folder of code that was frozen earlier."""
    return _listed(folder, walk(folder, "", lambda _: False, everything=True))


def list_again(code: CodeList) -> CodeList:
    """Return the list with the present size and status (`os.lstat`) of each file, without files that are gone.

    No file is added.
    """
    return with_files(_listed(code.root, {file.path for file in code.files} - {*code.beside}), code.beside)


def with_files(code: CodeList, beside: Mapping[str, Path]) -> CodeList:
    """Return the code with the files in `beside`, {name in the code: path of a regular file}, added as not executable;
    they replace files with equal names.
    """
    if not beside:
        return code
    looks = {name: path.lstat() for name, path in beside.items()}
    files = [file for file in code.files if file.path not in beside]
    files += [CodeFile(name, status.st_size, executable=False) for name, status in looks.items()]
    files.sort(key=lambda file: os.fsencode(file.path))
    return CodeList(code.root, tuple(files), {**code.looks, **looks}, beside)


def _runs_inside(project: Path) -> str | None:
    """Return the folder that holds the project's runs as a path within the project, with a slash at its end, or None if
    it is outside. Raise BadInput if it is the project itself.
    """
    root, home = os.path.realpath(runs_root(project)), os.path.realpath(project)
    if root == home:
        raise BadInput(f"LAUNCH_RUNS: {root} is the project itself", "hint: name a folder of its own for runs")
    return os.path.relpath(root, home) + "/" if root.startswith(f"{home.rstrip('/')}/") else None


def _included(project: Path, pattern: str) -> set[str]:
    """Return the files that a pattern of `code.include` matches, ignored by git or not; raise BadInput if it matches
    none, or leads out of the project.

    The folders of tools, such as `.venv`, are included only if the pattern names them; `.git` and `.launch` never are.
    """
    glob = Glob(pattern)
    if glob.leads_out:
        raise BadInput(f"code.include: {pattern!r} leads out of the project")
    matched = {name for name in _below(project, glob.below) if glob.matches(name)}
    if not matched:
        raise BadInput(f"code.include: no file in {project} matches {pattern!r}")
    return matched


def _below(project: Path, name: str) -> set[str]:
    """Return {`name`} if that is a file or link in the project, else the names of all files in its folder `name`; links
    are not followed. Return an empty set if it does not exist, is reached through a link, or is in `.git` or `.launch`.
    """
    path = project / name
    behind_link = path.parent.resolve() != project.resolve() / os.path.dirname(name) if name else False
    if NEVER & set(name.split("/")) or behind_link:
        return set()
    if path.is_dir() and (not name or not path.is_symlink()):
        return walk(project, name, lambda _: False)
    return {name} if os.path.lexists(path) else set()


def _listed(root: Path, names: set[str]) -> CodeList:
    """Return the list of code with the files and links of these names below `root`, without those that no longer exist
    or are neither. A link leads to the copied file if that is among them, else to its target by an absolute path.
    """
    looks: dict[str, os.stat_result] = {}
    home = os.fspath(root)
    entries = [entry for name in sorted(names, key=os.fsencode) if (entry := _entry(home, name, looks)) is not None]
    there = {entry.path for entry in entries}
    there |= folders_of(there)
    return CodeList(root, tuple(_relinked(root, entry, there) if entry.link else entry for entry in entries), looks)


def folders_of(paths: Iterable[str]) -> set[str]:
    """Return the folders that contain the paths, and all folders above them up to `.`."""
    folders = {"."}
    waiting = {path.rpartition("/")[0] for path in paths} - {""}
    while waiting:
        folders |= waiting
        waiting = {folder.rpartition("/")[0] for folder in waiting} - {""} - folders
    return folders


def _entry(root: str, name: str, looks: dict[str, os.stat_result]) -> CodeFile | None:
    """Return the entry of the file `name` in the folder `root`, and add its status to `looks` if it is a regular file.
    Return None for a deleted file, a socket, a FIFO or a device.
    """
    path = f"{root}/{name}"
    try:
        status = os.lstat(path)
        if stat.S_ISLNK(status.st_mode):
            return CodeFile(name, 0, False, os.readlink(path))
    except (FileNotFoundError, NotADirectoryError):
        return None
    if not stat.S_ISREG(status.st_mode):
        return None
    looks[name] = status
    return CodeFile(name, status.st_size, bool(status.st_mode & 0o111))


def _relinked(root: Path, entry: CodeFile, frozen: set[str]) -> CodeFile:
    """Return the entry `entry`, a symbolic link in the project at `root`, with its target adjusted to the copy of the
    code.

    `frozen` are the paths that are copied. A link to one of these becomes relative, so that it leads to the copied
    file; any other becomes absolute, so that it keeps its target.
    """
    home, folder, link = os.path.realpath(root), os.path.dirname(entry.path), entry.link or ""
    target = os.path.normpath(os.path.join(home, folder, link))
    inside = os.path.relpath(target, home)
    stays_within = os.path.normpath(os.path.join(folder, link)) == inside
    if (inside in frozen and stays_within) or (inside not in frozen and os.path.isabs(link)):
        return entry
    return CodeFile(entry.path, 0, False, os.path.relpath(inside, folder or ".") if inside in frozen else target)


def largest(files: Mapping[str, int], most: int = _SHOWN) -> list[tuple[str, int]]:
    """Return (name, size) of at most `most` files and folders that make up most of the total size; none contains
    another. A folder's name ends with a slash.

    `files` has the size in bytes of each file by its path.
    """
    sizes: Counter[str] = Counter()
    inside: dict[str, set[str]] = {}
    for path, size in files.items():
        parts = path.split("/")
        steps = ["", *("/".join(parts[:end]) + "/" for end in range(1, len(parts))), path]
        for folder, step in pairwise(steps):
            sizes[step] += size
            inside.setdefault(folder, set()).add(step)
    top = sorted(inside.get("", ()), key=lambda name: (-sizes[name], name))[:most]
    return [(name, sizes[name]) for name in (_narrowed(name, sizes, inside) for name in top)]


def _too_large(project: Path, files: Mapping[str, int], limit: int) -> BadInput:
    """Return the error that the code exceeds `limit` bytes; its text lists the largest files and folders.

    `files` has the size in bytes of each file by its path in `project`.
    """
    total = sum(files.values())
    ways = "code.exclude" if git_names(project) is None else ".gitignore or code.exclude"
    return BadInput(
        f"code.max_size: expected at most {_megabytes(limit)} of code in {project}, got {_megabytes(total)}; largest:",
        *(f"  {_megabytes(size):>12}  {shown(name)}" for name, size in largest(files)),
        f"hint: leave data and outputs out with {ways}, or raise code.max_size",
    )


def _narrowed(name: str, sizes: Counter[str], inside: dict[str, set[str]]) -> str:
    """Return the innermost file or folder below the folder `name` that has at least 90 % of the bytes of the folder
    around it, and so on up to `name`; return `name` itself if no entry in it has so much.

    `sizes` has the bytes of each file and folder, `inside` the names in each folder.
    """
    while name in inside:
        biggest = max(inside[name], key=lambda child: (sizes[child], child))
        if sizes[biggest] < _MOST_OF_IT * sizes[name]:
            break
        name = biggest
    return name


def _megabytes(size: int) -> str:
    """Return a size in bytes as text in megabytes."""
    return f"{size / 1e6:.1f} MB" if size >= 100_000 else f"{size} bytes"


def shown(name: str) -> str:
    """Return the file name in printable form, because it may contain newlines and invalid bytes."""
    return name if name.isprintable() else ascii(name)
