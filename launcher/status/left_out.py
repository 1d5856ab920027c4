"""What to do about a file that is in the project but not in the frozen code, where a rank failed for it."""

import contextlib
from pathlib import Path

from launcher.errors import LaunchError
from launcher.rundir.attempts import read_plan
from launcher.rundir.code.left_out import left_out
from launcher.rundir.layout import RunDir
from launcher.rundir.records import Failure


def left_out_hint(failure: Failure, run_dir: str) -> list[str]:
    """What it is and the way out; nothing where that is not why it failed, or nobody can tell."""
    run = RunDir(Path(run_dir))
    with contextlib.suppress(OSError, LaunchError, ValueError):  # the failure is worth showing without it
        plan = read_plan(run, failure.attempt)
        name = left_out(" ".join((failure.summary, *failure.tail[-1:])), plan, Path(plan.run_dir))
        return _explained(run, plan.project, name) if name else []
    return []


def _explained(run: RunDir, project: str, name: str) -> list[str]:
    way_out = f"launch resume {run.id} --code --set 'code.include+=[{name}]' freezes it too, and so does code.include"
    return [
        f"{name} is in {project} and was not frozen: git ignores it, or code.exclude leaves it out",
        f"hint: {way_out} in the spec; large data is better named by its absolute path",
    ]
