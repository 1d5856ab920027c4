"""Which files of a project are its code: its names, what the spec adds and leaves out, how large each is."""

import os
import stat
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from launcher.errors import BadInput
from launcher.rundir.code_globs import Glob
from launcher.rundir.code_names import NEVER, code_names, walk
from launcher.rundir.code_sizes import too_large
from launcher.rundir.registry import runs_root
from launcher.spec.model import Code


@dataclass(frozen=True, slots=True)
class CodeFile:
    """One entry: a regular file, or a symbolic link with its target."""

    path: str  # relative; os.fsencode gives back its bytes
    size: int
    executable: bool
    link: str | None = None


@dataclass(frozen=True)
class CodeList:
    """All files that will be frozen, in order."""

    root: Path
    files: tuple[CodeFile, ...]

    @cached_property
    def bytes(self) -> int:
        return sum(file.size for file in self.files)


def list_code(project: Path, code: Code) -> CodeList:
    """The code of a project. Raises BadInput where it is larger than the spec allows."""
    runs = _runs_inside(project)
    excluded = [Glob(pattern) for pattern in code.exclude]

    def skip(name: str) -> bool:
        return any(glob.matches(name) for glob in excluded) or (runs is not None and f"{name}/".startswith(runs))

    names = code_names(project, skip)
    for pattern in code.include:
        names |= {name for name in _included(project, pattern) if not skip(name)}
    found = _listed(project, names)
    if found.bytes > code.max_bytes:
        raise too_large(project, {file.path: file.size for file in found.files}, code.max_bytes)
    return found


def list_frozen(folder: Path) -> CodeList:
    """Everything in a folder that was frozen before."""
    return _listed(folder, walk(folder, "", lambda _: False, everything=True))


def list_again(code: CodeList) -> CodeList:
    """The listed files as they are now; one that vanished is not among them."""
    return _listed(code.root, {file.path for file in code.files})


def _runs_inside(project: Path) -> str | None:
    """The runs root as a folder of the project, with a slash; None where it lies elsewhere."""
    root, home = os.path.realpath(runs_root(project)), os.path.realpath(project)
    if root == home:
        raise BadInput(f"LAUNCH_RUNS: {root} is the project itself", "hint: name a folder of its own for runs")
    return os.path.relpath(root, home) + "/" if root.startswith(f"{home.rstrip('/')}/") else None


def _included(project: Path, pattern: str) -> set[str]:
    """What `code.include` names, ignored by git or not; into what tools made only where it says so itself."""
    glob = Glob(pattern)
    if glob.leads_out:
        raise BadInput(f"code.include: {pattern!r} leads out of the project")
    matched = {name for name in _below(project, glob.below) if glob.matches(name)}
    if not matched:
        raise BadInput(f"code.include: no file in {project} matches {pattern!r}")
    return matched


def _below(project: Path, name: str) -> set[str]:
    """The file or link of this name, or all that is in the folder of this name; nothing that lies behind a link."""
    path = project / name
    behind_link = path.parent.resolve() != project.resolve() / os.path.dirname(name) if name else False
    if NEVER & set(name.split("/")) or behind_link:
        return set()
    if path.is_dir() and (not name or not path.is_symlink()):
        return walk(project, name, lambda _: False)
    return {name} if os.path.lexists(path) else set()


def _listed(root: Path, names: set[str]) -> CodeList:
    entries = [entry for name in sorted(names, key=os.fsencode) if (entry := _entry(root, name)) is not None]
    frozen = {entry.path for entry in entries}
    folders = {parent for path in frozen for parent in _parents(path)}
    return CodeList(root, tuple(_moved(root, entry, frozen | folders) for entry in entries))


def _entry(root: Path, name: str) -> CodeFile | None:
    """None for what is no code: deleted but still tracked, sockets, FIFOs, devices."""
    path = root / name
    try:
        status = path.lstat()
        if stat.S_ISLNK(status.st_mode):
            return CodeFile(name, 0, False, os.readlink(path))
    except (FileNotFoundError, NotADirectoryError):
        return None
    if not stat.S_ISREG(status.st_mode):
        return None
    return CodeFile(name, status.st_size, bool(status.st_mode & 0o111))


def _moved(root: Path, entry: CodeFile, frozen: set[str]) -> CodeFile:
    """A link to something that is frozen too leads to the copy; any other leads to where it always did."""
    if entry.link is None:
        return entry
    home, folder = os.path.realpath(root), os.path.dirname(entry.path)
    target = os.path.normpath(os.path.join(home, folder, entry.link))
    inside = os.path.relpath(target, home)
    if (inside in frozen) != os.path.isabs(entry.link):
        return entry
    return CodeFile(entry.path, 0, False, os.path.relpath(inside, folder or ".") if inside in frozen else target)


def _parents(path: str) -> list[str]:
    parts = path.split("/")
    return [".", *("/".join(parts[:end]) for end in range(1, len(parts)))]
