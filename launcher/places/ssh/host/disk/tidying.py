"""Report what runs and code take of a host's disk, and delete what is not live."""

import contextlib
import os
import time
from pathlib import Path

from launcher.places.ssh.host import presence
from launcher.places.ssh.messages import Tidied, Tidy
from launcher.remote.shipping import kept_trees
from launcher.run.layout import RunDir
from launcher.run.processes import tagged_any
from launcher.run.removal import remove_tree, size_of, unneeded


def tidy(workdir: Path, wanted: Tidy) -> Tidied:
    """Return what the runs take of this host's disk; with `remove`, delete it except what a live run needs."""
    there = {run_id: run for run_id in wanted.runs if (run := RunDir(workdir / "runs" / run_id)).path.is_dir()}
    tags = tagged_any([str(run.path) for run in there.values()], os.getuid())
    live = tuple(run_id for run_id, run in there.items() if tags[str(run.path)] or presence.is_held(run))
    over = {run_id: run for run_id, run in there.items() if run_id not in live}
    sizes = {run_id: size_of(run.path) for run_id, run in there.items()}
    idle = kept_trees.idle(workdir / "code", time.time())
    code = [tree for tree in unneeded(workdir / "code", workdir / "runs", without=over) if tree in idle]
    freed = sum(map(size_of, code))
    if wanted.remove:
        for run in over.values():
            with presence.held(run):  # no supervisor of it can begin
                _delete(run.path)
        for tree in code:
            _delete(tree)
    return Tidied(sizes, freed, live)


def _delete(path: Path) -> None:
    """Delete the folder, unless another host with the same disk has done so."""
    with contextlib.suppress(FileNotFoundError):  # another host of the same disk was quicker
        remove_tree(path)
