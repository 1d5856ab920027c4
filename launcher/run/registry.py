"""The user's own list of runs: one symbolic link per run id in the state folder, so that runs are found from any
working directory.
"""

import contextlib
import os
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path

import msgspec

from launcher.errors import BadInput, NoSuchRun
from launcher.ids import LAST, RunId, is_run_id, parse_run_id
from launcher.run.durable import Damaged, make_dir, read_record, readable, sync_dir, write_bytes
from launcher.run.layout import RunDir
from launcher.run.ownership import is_ours_alone, own_part, refuse_exposed
from launcher.run.records import Labels

_SHOWN = 8
_ADOPTED = "adopted"


class _Submitted(msgspec.Struct, frozen=True):
    """The time of submission, as both state.json and plan.json record it."""

    submitted_at: float


def runs_root(project: Path, *, create: bool = False) -> Path:
    """Return the folder for the runs of a project: $LAUNCH_RUNS, or .launch/runs in the project; if that is a folder
    into which other users can write, its subfolder with this user's name.

    With `create`, create it and, in a project, make git ignore it; raise BadInput if that fails, or if other users
    could put their code in it.
    """
    named = os.environ.get("LAUNCH_RUNS")
    common = Path(named).absolute() if named else project / ".launch" / "runs"
    root = own_part(common)
    if not create:
        return root
    owners: tuple[int, ...] | None
    if named:
        about, below, owners = "LAUNCH_RUNS", Path("/"), None if os.geteuid() == 0 else ()
    else:  # who owns the project, or can write to it or above it, decides what runs anyway
        about, below, owners = "runs", project, (project.stat().st_uid,)
    hint = "hint: LAUNCH_RUNS=$HOME/runs names another folder for runs; one that users share needs `chmod +t`"
    refuse_exposed(root, about, hint, below=below, owners=owners)
    try:
        if not root.is_dir():
            make_dir(root)
            sync_dir(root.parent)
            refuse_exposed(root, about, hint, below=below, owners=owners)
        if not named:
            hide_from_git(common.parent)
    except OSError as error:
        raise BadInput(f"{about}: {root}: cannot be made: {error.strerror}", hint) from error
    return root


def hide_from_git(folder: Path) -> None:
    """Make git ignore everything in this folder, by a .gitignore in it; one that exists is left as it is."""
    if not (ignore := folder / ".gitignore").exists():
        write_bytes(ignore, b"*\n")


def variable_of(path: str) -> str | None:
    """Return the name of the environment variable with which the user can move the launcher's files away from `path`:
    LAUNCH_RUNS if the folder of all runs is at, above or below `path`, XDG_STATE_HOME if the folder of the user's lists
    is. Return None if neither is.
    """
    at, named = Path(os.path.abspath(path)), os.environ.get("LAUNCH_RUNS")
    root, state = Path(named).absolute() if named else None, _folder().parent
    if (root and _one_contains_other(at, root)) or "/.launch/runs/" in f"{at}/":
        return "LAUNCH_RUNS"
    return "XDG_STATE_HOME" if _one_contains_other(at, state) else None


def _one_contains_other(one: Path, other: Path) -> bool:
    """Return whether the two paths are equal or one is above the other."""
    return one.is_relative_to(other) or other.is_relative_to(one)


def register(run_id: RunId, path: Path, *, fsync: bool = True, among: str = "runs") -> None:
    """Register a run's id with its folder, durably with `fsync`; raise FileExistsError if the id is taken.

    `among` is the list: the user's runs, or graphs or sweeps, whose ids have the form of a run's.
    """
    folder = state_folder() / among
    make_dir(folder)
    refuse_exposed(folder, "state", "hint: XDG_STATE_HOME names another folder for what is known of runs")
    (folder / run_id).symlink_to(path.absolute())
    if fsync:
        sync_dir(folder)


def register_all(runs: Sequence[tuple[RunId, Path]]) -> None:
    """Register all of the runs, or none; raise FileExistsError if an id is taken."""
    done = list[RunId]()
    try:
        for run_id, path in runs:
            register(run_id, path, fsync=False)
            done.append(run_id)
        sync_dir(_folder())
    except BaseException:
        for run_id in done:
            forget(run_id)
        raise


def adopted(run_id: RunId) -> Path:
    """Return the path of the folder that a run submitted from another machine gets on this one, where its records are
    copied; it may not exist yet.
    """
    return _folder().parent / _ADOPTED / run_id


def is_adopted(path: Path) -> bool:
    """Return whether `path` is the folder of a run that was submitted from another machine."""
    return f"/{_ADOPTED}/" in str(path) and path.parent == _folder().parent / _ADOPTED  # paths are slow to make


def forget(run_id: RunId) -> None:
    """Remove the run from the list."""
    (_folder() / run_id).unlink(missing_ok=True)


def is_registered(run_id: RunId) -> bool:
    """Return whether the list has this id."""
    return (_folder() / run_id).is_symlink()


def registered() -> list[tuple[RunId, Path]]:
    """Return (id, folder) of all runs of this user that are registered, the newest first; the folder may no longer
    exist.
    """
    found = list[tuple[int, RunId, Path]]()
    with contextlib.suppress(FileNotFoundError, NotADirectoryError), os.scandir(_folder()) as entries:
        for entry in entries:
            link = entry.stat(follow_symlinks=False)
            if link.st_uid == os.geteuid() and entry.is_symlink() and is_run_id(entry.name):
                found.append((link.st_mtime_ns, parse_run_id(entry.name), Path(os.readlink(entry.path))))
    return [(run_id, path) for _, run_id, path in sorted(found, reverse=True)]


def names() -> frozenset[str]:
    """Return the ids in the list without following their links; a caller compares them to find out whether the list has
    changed.
    """
    with contextlib.suppress(FileNotFoundError, NotADirectoryError):
        return frozenset(os.listdir(_folder()))
    return frozenset()


def changed_ns() -> int:
    """Return when the list of runs was last changed, in nanoseconds of Unix time, or 0 if there is no list."""
    try:
        return _folder().stat().st_mtime_ns
    except OSError:
        return 0


def gone() -> list[tuple[RunId, Path]]:
    """Return (id, folder) of the registered runs whose folder no longer exists."""
    return [(run_id, path) for run_id, path in registered() if not path.is_dir()]


def unlisted(folder: Path) -> list[tuple[RunId, Path]]:
    """Return (id, folder) of this user's runs of the project in `folder`, or in the nearest folder above it that has
    runs, that are not registered, for instance because they were submitted with another HOME or state folder.
    """
    roots = (runs_root(at) for at in (folder, *folder.parents))
    root = next((at for at in roots if at.is_dir()), None)
    if root is None:
        return []
    known = {path for _, path in registered()}
    with contextlib.suppress(PermissionError), os.scandir(root) as entries:
        paths = sorted(Path(entry.path) for entry in entries if is_run_id(entry.name))
        new = [path for path in paths if path not in known and RunDir(path).plan.is_file() and is_ours_alone(path)]
        return [(parse_run_id(path.name), path) for path in new]
    return []


def find(ref: str) -> tuple[RunId, Path]:
    """Return (id, folder) of the run with this id, unique beginning of an id, or name, or of the newest run for `last`;
    raise NoSuchRun if there is none, or if several fit.
    """
    known = dict(registered())
    if ref == LAST:
        return _newest(known)
    # The reference is only ever compared with names, never made part of a path.
    whole = [run_id for run_id in known if run_id == ref]
    matches = whole or sorted(run_id for run_id in known if ref and run_id.startswith(ref))
    there = [run_id for run_id in matches if known[run_id].is_dir()]
    if len(there) == 1:
        return there[0], known[there[0]]
    if (called := _called(ref, known)) is not None:
        return called
    if there:
        more = ", ..." if len(there) > _SHOWN else ""
        raise NoSuchRun(
            f"{ref}: expected the id of one run, got the beginning of {len(there)}",
            f"hint: {', '.join(there[:_SHOWN])}{more}",
        )
    if matches:
        raise NoSuchRun(f"{matches[0]}: its folder is gone: {known[matches[0]]}")
    raise NoSuchRun(f"{ref[:100]!r}: no such run", f"hint: {_hint_for_unknown(ref, list(known))}")


def _called(ref: str, known: dict[RunId, Path]) -> tuple[RunId, Path] | None:
    """Return (id, folder) of the one run to which its user has given the name `ref`, or None if no run or several runs
    have it.
    """
    labels = ((one, readable(RunDir(one[1]).labels, Labels)) for one in known.items())
    found = [one for one, said in labels if said is not None and said.name == ref]
    return found[0] if len(found) == 1 else None


def _newest(known: dict[RunId, Path]) -> tuple[RunId, Path]:
    """Return (id, folder) of the run that was submitted last, as the runs' records tell; raise NoSuchRun if `known` has
    no run whose folder exists.
    """
    ages = {run_id: _submitted_at(path) for run_id, path in known.items() if path.is_dir()}
    if not ages:
        raise NoSuchRun("there is no run yet", "hint: launch submit FILE")
    newest = max(ages, key=lambda run_id: (ages[run_id], run_id))
    return newest, known[newest]


def _submitted_at(path: Path) -> float:
    """Return the time of submission that the run recorded, or 0 if no record of it can be read; a folder's own times
    change with each file that is written into it.
    """
    run = RunDir(path)
    for file in (run.state, run.plan):
        with contextlib.suppress(Damaged, OSError):
            if (record := read_record(file, _Submitted)) is not None:
                return record.submitted_at
    return 0.0


def _hint_for_unknown(ref: str, known: list[RunId]) -> str:
    """Return a hint for an unknown run: similar ids, or how to list all runs."""
    import difflib  # late: only a mistake needs it, and every command imports this module

    near = difflib.get_close_matches(ref[:100], known, n=3)
    return f"did you mean {' or '.join(near)}?" if near else "`launch status` shows all runs"


def state_folder() -> Path:
    """Return the folder with the user's lists of runs and sweeps on this machine and the facts found about clusters."""
    return _launch_folder(os.environ.get("XDG_STATE_HOME") or os.path.expanduser("~/.local/state"))


@lru_cache(maxsize=4)
def _launch_folder(home: str) -> Path:
    """Return the launcher's folder in the XDG state folder `home`, where every program keeps its state. The result is
    cached, because it is needed for each of many runs.
    """
    return Path(home) / "launch"


def _folder() -> Path:
    """Return the folder with the list of runs."""
    return state_folder() / "runs"
