"""The user's own list of runs: one symlink per run id in the state folder, so that runs are found from anywhere."""

import contextlib
import difflib
import os
from pathlib import Path

from launcher.errors import NoSuchRun
from launcher.rundir.durable import Damaged, make_dir, read_record, write_bytes
from launcher.rundir.layout import RunDir
from launcher.rundir.records import RunState


def runs_root(project: Path, *, create: bool = False) -> Path:
    """Where the runs of a project live: $LAUNCH_RUNS, or .launch/runs in it, which git is told to ignore."""
    named = os.environ.get("LAUNCH_RUNS")
    root = Path(named).absolute() if named else project / ".launch" / "runs"
    if create:
        make_dir(root)
        ignore = project / ".launch" / ".gitignore"
        if not named and not ignore.exists():
            write_bytes(ignore, b"*\n")
    return root


def register(run_id: str, path: Path) -> None:
    """Raises FileExistsError where the id is taken."""
    folder = _folder()
    make_dir(folder)
    (folder / run_id).symlink_to(path)


def forget(run_id: str) -> None:
    (_folder() / run_id).unlink(missing_ok=True)


def is_registered(run_id: str) -> bool:
    return (_folder() / run_id).is_symlink()


def registered() -> list[tuple[str, Path]]:
    """All runs whose link is there; the folder behind it may be gone."""
    found = []
    with contextlib.suppress(FileNotFoundError), os.scandir(_folder()) as entries:
        for entry in entries:
            if entry.is_symlink():
                found.append((entry.name, Path(os.readlink(entry.path))))
    return found


def find(ref: str) -> Path:
    """The folder of the run with this id, this unique beginning of an id, or the newest for `last`."""
    known = {run_id: path for run_id, path in registered() if path.is_dir()}
    if ref == "last":
        if not known:
            raise NoSuchRun("there is no run yet", "hint: launch submit FILE")
        return known[max(known, key=lambda run_id: _submitted_at(known[run_id]))]
    if ref in known:
        return known[ref]
    matches = sorted(run_id for run_id in known if ref and run_id.startswith(ref))
    if len(matches) == 1:
        return known[matches[0]]
    if matches:
        raise NoSuchRun(f"{ref}: is the beginning of {len(matches)} runs", f"hint: {', '.join(matches[:8])}")
    near = difflib.get_close_matches(ref[:100], list(known), n=3)
    hint = f"did you mean {' or '.join(near)}?" if near else "`launch status` shows all runs"
    raise NoSuchRun(f"{ref[:100]!r}: no such run", f"hint: {hint}")


def _submitted_at(path: Path) -> float:
    try:
        state = read_record(RunDir(path).state, RunState)
    except Damaged:
        return 0.0
    return 0.0 if state is None else state.submitted_at


def _folder() -> Path:
    home = os.environ.get("XDG_STATE_HOME") or os.path.expanduser("~/.local/state")
    return Path(home) / "launch" / "runs"
