"""The user's own list of runs: one symlink per run id in the state folder, so that runs are found from anywhere."""

import contextlib
import os
import re
from collections.abc import Sequence
from pathlib import Path

import msgspec

from launcher.errors import NoSuchRun
from launcher.rundir.durable import Damaged, make_dir, read_record, sync_dir, write_bytes
from launcher.rundir.layout import RunDir

LAST = "last"
_ID = re.compile(r"[a-z0-9][a-z0-9_-]{0,127}")
_SHOWN = 8


class _Submitted(msgspec.Struct, frozen=True):
    """What state.json and plan.json both say of a run's age."""

    submitted_at: float


def runs_root(project: Path, *, create: bool = False) -> Path:
    """Where the runs of a project live: $LAUNCH_RUNS, or .launch/runs in it, which git is told to ignore."""
    named = os.environ.get("LAUNCH_RUNS")
    root = Path(named).absolute() if named else project / ".launch" / "runs"
    if create and not root.is_dir():
        make_dir(root)
        sync_dir(root.parent)
    if create and not named and not (ignore := root.parent / ".gitignore").exists():
        write_bytes(ignore, b"*\n")
    return root


def register(run_id: str, path: Path, *, fsync: bool = True) -> None:
    """Have this id lead to this folder. Raises FileExistsError where the id is taken."""
    if not _ID.fullmatch(run_id) or run_id == LAST:
        raise ValueError(f"expected the id of a run, got {run_id!r}")
    folder = _folder()
    make_dir(folder)
    (folder / run_id).symlink_to(path.absolute())
    if fsync:
        sync_dir(folder)


def register_all(runs: Sequence[tuple[str, Path]]) -> None:
    """All of these, or none. Raises FileExistsError where an id is taken."""
    done = list[str]()
    try:
        for run_id, path in runs:
            register(run_id, path, fsync=False)
            done.append(run_id)
        sync_dir(_folder())
    except BaseException:
        for run_id in done:
            forget(run_id)
        raise


def adopted(run_id: str) -> Path:
    """The folder of a run that was submitted from another machine."""
    return _folder().parent / "adopted" / run_id


def forget(run_id: str) -> None:
    if _ID.fullmatch(run_id):
        (_folder() / run_id).unlink(missing_ok=True)


def is_registered(run_id: str) -> bool:
    return _ID.fullmatch(run_id) is not None and (_folder() / run_id).is_symlink()


def registered() -> list[tuple[str, Path]]:
    """All runs whose link is there; the folder behind it may be gone."""
    found = []
    with contextlib.suppress(FileNotFoundError, NotADirectoryError), os.scandir(_folder()) as entries:
        for entry in entries:
            if entry.is_symlink() and _ID.fullmatch(entry.name):
                found.append((entry.name, Path(os.readlink(entry.path))))
    return found


def gone() -> list[tuple[str, Path]]:
    """The runs whose folder was taken away behind our back."""
    return [(run_id, path) for run_id, path in registered() if not path.is_dir()]


def find(ref: str) -> Path:
    """The folder of the run with this id, this unique beginning of an id, or the newest for `last`."""
    known = dict(registered())
    if ref == LAST:
        return _newest(known)
    # The reference is only ever compared with names, never made part of a path.
    matches = [ref] if ref in known else sorted(run_id for run_id in known if ref and run_id.startswith(ref))
    there = [run_id for run_id in matches if known[run_id].is_dir()]
    if len(there) == 1:
        return known[there[0]]
    if there:
        more = ", ..." if len(there) > _SHOWN else ""
        raise NoSuchRun(
            f"{ref}: expected the id of one run, got the beginning of {len(there)}",
            f"hint: {', '.join(there[:_SHOWN])}{more}",
        )
    if matches:
        raise NoSuchRun(f"{matches[0]}: its folder is gone: {known[matches[0]]}")
    raise NoSuchRun(f"{ref[:100]!r}: no such run", f"hint: {_near(ref, list(known))}")


def _newest(known: dict[str, Path]) -> Path:
    ages = {run_id: _submitted_at(path) for run_id, path in known.items() if path.is_dir()}
    if not ages:
        raise NoSuchRun("there is no run yet", "hint: launch submit FILE")
    return known[max(ages, key=lambda run_id: (ages[run_id], run_id))]


def _submitted_at(path: Path) -> float:
    """As the run itself says: a folder's times change with what is written into it."""
    run = RunDir(path)
    for file in (run.state, run.plan):
        with contextlib.suppress(Damaged, OSError):
            if (record := read_record(file, _Submitted)) is not None:
                return record.submitted_at
    return 0.0


def _near(ref: str, known: list[str]) -> str:
    import difflib  # late: only a mistake needs it, and every command imports this module

    near = difflib.get_close_matches(ref[:100], known, n=3)
    return f"did you mean {' or '.join(near)}?" if near else "`launch status` shows all runs"


def _folder() -> Path:
    home = os.environ.get("XDG_STATE_HOME") or os.path.expanduser("~/.local/state")
    return Path(home) / "launch" / "runs"
