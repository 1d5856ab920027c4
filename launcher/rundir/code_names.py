"""The names of a project's files: what git tracks or would track; where git has no say, all that looks like code."""

import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

from launcher.errors import BadInput

_GITS = frozenset(
    {
        "HOME",
        "LANG",
        "LD_LIBRARY_PATH",  # of a git from a module tree
        "LD_PRELOAD",
        "LOGNAME",
        "PATH",
        "SUDO_UID",  # whose repositories root may read
        "TMPDIR",
        "USER",
        "XDG_CONFIG_HOME",
        "XDG_DATA_HOME",
    }
)
NEVER = frozenset({".git", ".launch"})
# Made by tools, and never what a user means by code; what git tracks of them is taken all the same.
_NOT_CODE = frozenset(
    {
        ".hg",
        ".idea",
        ".ipynb_checkpoints",
        ".mypy_cache",
        ".nox",
        ".pytest_cache",
        ".ruff_cache",
        ".svn",
        ".tox",
        ".venv",
        "__pycache__",
        "node_modules",
        "venv",
    }
)
_BYTECODE = ".pyc"
_MOST_FILES = 100_000
_OF_ANOTHER_CALL = (
    "GIT_DIR",
    "GIT_WORK_TREE",
    "GIT_INDEX_FILE",
    "GIT_OBJECT_DIRECTORY",
    "GIT_COMMON_DIR",
    "GIT_PREFIX",
)


def code_names(project: Path, skip: Callable[[str], bool]) -> set[str]:
    """Relative paths; `skip` tells, also of a folder (its path ends with a slash), that it is not to be looked at."""
    tracked = git_names(project)
    if tracked is None:
        return walk(project, "", skip)
    return {name for name in tracked if not NEVER & set(name.split("/")) and not skip(name)}


def git_names(project: Path) -> set[str] | None:
    """Tracked, and untracked but not ignored; None where git is not there, or knows nothing of this folder."""
    names: set[str] = set()
    for name in _ls_files(project) or ():
        path = project / name
        if path.is_symlink() or not path.is_dir():
            names.add(name)
            continue
        # A submodule, or a repository within; one that was never fetched is an empty folder.
        folder = name.rstrip("/")
        inside = git_names(path) if (path / ".git").exists() else None
        names.update(f"{folder}/{one}" for one in (walk(path, "", _nothing) if inside is None else inside))
    return names or None


def walk(root: Path, below: str, skip: Callable[[str], bool], *, everything: bool = False) -> set[str]:
    """All files and links below a folder, without following links; `everything`: also what tools made."""
    names: set[str] = set()
    folders = [below]
    while folders:
        folder = folders.pop()
        for entry in _entries(root, folder):
            name = f"{folder}/{entry.name}" if folder else entry.name
            if entry.name in NEVER or (not everything and _made_by_tools(entry.name)):
                continue
            if not entry.is_dir(follow_symlinks=False):
                names.update(() if skip(name) else (name,))
            elif not skip(f"{name}/"):
                folders.append(name)
        if len(names) > _MOST_FILES:
            hint = "hint: keep the spec in the folder of its project, or leave folders out with code.exclude"
            raise BadInput(f"code: expected at most {_MOST_FILES} files below {root}, got more", hint)
    return names


def _is_gits(variable: str) -> bool:
    """What git needs to find itself and its configuration: a secret that the user exports is none of it."""
    return variable not in _OF_ANOTHER_CALL and (variable in _GITS or variable.startswith(("GIT_", "LC_")))


def _ls_files(folder: Path) -> set[str] | None:
    left_out = [f"--exclude={name}/" for name in sorted(_NOT_CODE)] + [f"--exclude=*{_BYTECODE}"]
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard", *left_out]
    env = {key: value for key, value in os.environ.items() if _is_gits(key)} | {"GIT_OPTIONAL_LOCKS": "0"}
    try:
        done = subprocess.run(command, cwd=folder, env=env, stdin=subprocess.DEVNULL, capture_output=True, check=False)
    except FileNotFoundError:
        return None
    if done.returncode != 0:  # no repository, or one that git refuses to read
        return None
    return {os.fsdecode(name) for name in done.stdout.split(b"\0") if name}


def _entries(root: Path, folder: str) -> Iterator[os.DirEntry[str]]:
    try:
        with os.scandir(root / folder) as entries:
            yield from entries
    except OSError as error:
        hint = f"hint: code.exclude: [{folder}/] leaves it out"
        raise BadInput(f"code: cannot read the folder {root / folder}: {error.strerror}", hint) from error


def _made_by_tools(name: str) -> bool:
    return name in _NOT_CODE or name.endswith(_BYTECODE)


def _nothing(_: str) -> bool:
    return False
