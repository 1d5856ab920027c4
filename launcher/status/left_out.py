"""A file that a failed rank could not open, and that is in the project but not in the frozen code."""

import contextlib
import os
import re
from pathlib import Path

from launcher.errors import LaunchError
from launcher.rundir.attempts import read_plan
from launcher.rundir.layout import RunDir
from launcher.rundir.records import Failure

_NOT_THERE = re.compile(r"No such file or directory: b?(['\"])(.+?)\1")


def left_out(failure: Failure, run_dir: str) -> list[str]:
    """What it is and the way out; nothing where that is not why it failed, or nobody can tell."""
    found = _NOT_THERE.search(" ".join((failure.summary, *failure.tail[-1:])))
    if found is None:
        return []
    with contextlib.suppress(OSError, LaunchError, ValueError):  # the failure is worth showing without it
        return _explained(RunDir(Path(run_dir)), failure.attempt, found[2])
    return []


def _explained(run: RunDir, attempt: int, wanted: str) -> list[str]:
    plan = read_plan(run, attempt)
    code = os.path.join(plan.run_dir, "code")
    name = os.path.relpath(os.path.join(plan.run_dir, plan.workdir, wanted), code)
    there = Path(plan.project, name)
    if name == "." or name.startswith("..") or (run.code / name).exists() or not there.exists():
        return []
    way_out = f"launch resume {run.id} --code --set 'code.include=[{name}]' freezes it too, and so does code.include"
    return [
        f"{name} is in {plan.project} and was not frozen: git ignores it, or code.exclude leaves it out",
        f"hint: {way_out} in the spec; large data is better named by its absolute path",
    ]
