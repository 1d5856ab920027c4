"""Find the names of a project's files: what git tracks or would track; without git, all that looks like code."""

import os
import stat
import subprocess
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from launcher.errors import BadInput

# LD_*: of a git from a module tree; SUDO_UID: whose repositories root may read.
_GITS = frozenset({
    "GIT_CEILING_DIRECTORIES", "GIT_DISCOVERY_ACROSS_FILESYSTEM", "GIT_EXEC_PATH", "HOME", "LANG",
    "LD_LIBRARY_PATH", "LD_PRELOAD", "LOGNAME", "SUDO_UID", "TMPDIR", "USER", "XDG_CONFIG_HOME", "XDG_DATA_HOME",
})  # fmt: skip
NEVER = frozenset({".git", ".launch"})
# Made by tools, and never what a user means by code; what git tracks of them is taken all the same.
_NOT_CODE = frozenset({
    ".hg", ".idea", ".ipynb_checkpoints", ".mypy_cache", ".nox", ".pytest_cache", ".ruff_cache", ".svn", ".tox",
    ".venv", "__pycache__", "node_modules", "venv",
})  # fmt: skip
_BYTECODE = ".pyc"
SUBMODULE = "160000"  # the mode that git gives it
_MOST_FILES = 100_000
# A repository may have come from anywhere: none of the programs that its configuration names is started.
_WITHOUT_FILTER = {"clean": "", "smudge": "", "process": "", "required": "false"}
_NO_PROGRAMS = ("-c", "core.fsmonitor=", "-c", f"core.hooksPath={os.devnull}")
_NO_FETCHING = {"GIT_ALLOW_PROTOCOL": "none", "GIT_NO_LAZY_FETCH": "1", "GIT_OPTIONAL_LOCKS": "0"}


def code_names(project: Path, skip: Callable[[str], bool]) -> set[str]:
    """Return the relative paths of the project's code, without the files and folders for which `skip` returns True;
    `skip` gets a folder's path with a slash at its end.
    """
    tracked = git_names(project)
    if tracked is None:
        return walk(project, "", skip)
    return {name for name in tracked if not NEVER & set(name.split("/")) and not skip(name)}


def git_names(project: Path) -> set[str] | None:
    """Return the names of tracked files and of untracked ones that are not ignored, those in submodules included.
    Return None if git is missing, or if the folder is not in a repository or has no such files.
    """
    names: set[str] = set()
    for name, is_repository in _ls_files(project):
        if not is_repository or not _is_folder(f"{project}/{name}"):
            names.add(name)
            continue
        path = project / name
        # A submodule, or a repository within; one that was never fetched is an empty folder.
        folder = name.rstrip("/")
        inside = git_names(path) if (path / ".git").exists() else None
        names.update(f"{folder}/{one}" for one in (walk(path, "", _nothing) if inside is None else inside))
    return names or None


def _is_folder(path: str) -> bool:
    """Return whether the path is a folder, not a link to one."""
    try:
        return stat.S_ISDIR(os.lstat(path.rstrip("/")).st_mode)
    except (FileNotFoundError, NotADirectoryError):
        return False


def walk(
    root: Path,
    below: str,
    skip: Callable[[str], bool],
    *,
    everything: bool = False,
    most_files: int = _MOST_FILES,
) -> set[str]:
    """Return the names, relative to `root`, of all files and links in its folder `below`, without following links;
    leave out each for which `skip` returns True, and always `.git` and `.launch`.

    Raise BadInput for more than `most_files`. With `everything`, bytecode and the folders of tools, such as `.venv`,
    are included and the number is unlimited.
    """
    names: set[str] = set()
    folders = [below]
    while folders:
        folder = folders.pop()
        for entry in _entries(root, folder):
            name = f"{folder}/{entry.name}" if folder else entry.name
            made_by_tools = entry.name in _NOT_CODE or entry.name.endswith(_BYTECODE)
            if entry.name in NEVER or (made_by_tools and not everything):
                continue
            if not entry.is_dir(follow_symlinks=False):
                names.update(() if skip(name) else (name,))
            elif not skip(f"{name}/"):
                folders.append(name)
        if len(names) > most_files and not everything:
            hint = "hint: keep the spec in the folder of its project, or leave folders out with code.exclude"
            raise BadInput(f"code: expected at most {most_files} files below {root}, got more", hint)
    return names


def _environment() -> dict[str, str]:
    """Return the variables with which git finds itself and the user's configuration, without any secrets that the
    user exports.
    """
    kept = {key: value for key, value in os.environ.items() if key in _GITS or key.startswith(("GIT_CONFIG_", "LC_"))}
    # A relative folder would be one of the project's.
    path = os.pathsep.join(filter(os.path.isabs, os.get_exec_path()))
    return {**kept, **_NO_FETCHING, "PATH": path}


def _ls_files(folder: Path) -> Iterator[tuple[str, bool]]:
    """Yield (name, whether it is a folder that may be a repository of its own) for each file or folder that git lists
    in the folder.
    """
    left_out = [f"--exclude={name}/" for name in sorted(_NOT_CODE)] + [f"--exclude=*{_BYTECODE}"]
    listing = ["ls-files", "-z", "-t", "--stage", "--cached", "--others", "--exclude-standard", *left_out]
    for entry in os.fsdecode(git_output(folder, listing) or b"").split("\0"):
        if entry.startswith("? "):
            yield entry[2:], entry.endswith("/")
        elif entry:  # a tag, the mode, the object and the stage stand before the tab
            about, _, name = entry.partition("\t")
            yield name, about[2:].startswith(SUBMODULE)


def git_output(
    folder: Path, words: Sequence[str], *, stdin: bytes = b"", timeout_s: float | None = None
) -> bytes | None:
    """Return what `git` with the arguments `words` prints, or None if git is missing, fails, or refuses the repository
    at the folder. Raise TimeoutExpired if it takes longer than `timeout_s`; None sets no limit.

    `stdin` is passed to git's standard input. Git starts no program that the repository's configuration names, such as
    a hook.
    """
    env = _environment()
    names = _run_git(folder, ("config", "-z", "--name-only", "--get-regexp", r"^filter\."), env, timeout_s=timeout_s)
    filters = {os.fsdecode(name).rpartition(".")[0] for name in (names or b"").split(b"\0") if name}
    settings = [(f"{one}.{key}", value) for one in sorted(filters) for key, value in _WITHOUT_FILTER.items()]
    return _run_git(folder, words, _with_settings(env, settings), stdin, timeout_s)


def _run_git(
    folder: Path, words: Sequence[str], env: dict[str, str], stdin: bytes = b"", timeout_s: float | None = None
) -> bytes | None:
    """Run git in `folder` with the arguments `words` and the environment `env`; return what it prints, or None if git
    is missing or fails. Raise TimeoutExpired after `timeout_s` seconds. `stdin` is its standard input.
    """
    command = ["git", *_NO_PROGRAMS, *words]
    try:
        done = subprocess.run(
            command, cwd=folder, env=env, input=stdin, capture_output=True, check=False, timeout=timeout_s
        )
    except (FileNotFoundError, NotADirectoryError):
        return None
    return done.stdout if done.returncode == 0 else None


def _with_settings(env: dict[str, str], settings: Sequence[tuple[str, str]]) -> dict[str, str]:
    """Return the environment with the git settings (name, value) added as variables. Git's option `-c` is not used,
    because it splits a name that contains "=".
    """
    given = env.get("GIT_CONFIG_COUNT", "")
    count = int(given) if given.isdecimal() else 0
    named = dict[str, str]()
    for number, (key, value) in enumerate(settings, count):
        named |= {f"GIT_CONFIG_KEY_{number}": key, f"GIT_CONFIG_VALUE_{number}": value}
    return {**env, **named, "GIT_CONFIG_COUNT": str(count + len(settings))} if settings else env


def _entries(root: Path, folder: str) -> Iterator[os.DirEntry[str]]:
    """Yield the entries of one folder, not of those in it; `folder` is its path relative to `root`. Raise BadInput if
    the folder cannot be read.
    """
    try:
        with os.scandir(root / folder) as entries:
            yield from entries
    except OSError as error:
        hint = f"hint: code.exclude: [{folder}/] leaves it out"
        raise BadInput(f"code: cannot read the folder {root / folder}: {error.strerror}", hint) from error


def _nothing(_: str) -> bool:
    """Return False for every name, so that no file is skipped."""
    return False
