"""Explain to the user where a failed rank ran, and what to do about a missing module or a file that was not frozen."""

import contextlib
import re
from pathlib import Path

from launcher.errors import LaunchError
from launcher.plan.interpreter import package_of
from launcher.run.attempts import read_plan
from launcher.run.code.left_out import left_out
from launcher.run.layout import RunDir
from launcher.run.records import Failure

_OURS = frozenset({"launcher", "trainer"})
# What Python says of an import, and of a module that it was to run.
_MISSED = re.compile(r"No module named '?(?P<name>\w[\w.]*)")


def where_it_ran(failure: Failure, run_dir: str) -> list[str]:
    """Return lines that name the folder in which a failed rank ran, and how to get a missing file or module to it.

    Return an empty list if the run's plan cannot be read.
    """
    run = RunDir(Path(run_dir))
    with contextlib.suppress(OSError, LaunchError, ValueError):  # the failure is worth showing without it
        plan = read_plan(run, failure.attempt)
        name = left_out(" ".join((failure.summary, *failure.tail[-1:])), plan, Path(plan.run_dir))
        ran = f"it ran in {plan.run_dir}/{plan.workdir}, a copy of {plan.project} as it was at submit"
        explained = _explained(run, plan.project, name) if name else way_to_have(failure, plan.entry.python)
        return [ran, *explained]
    return []


def way_to_have(failure: Failure, python: str) -> list[str]:
    """Return lines on how to install the module that a failed rank could not import, or an empty list if none was
    missing.

    `python` is the interpreter of the ranks.
    """
    found = _MISSED.search(" ".join((failure.summary, *failure.tail[-1:])))
    if found is None:
        return []
    top = found["name"].partition(".")[0]
    install = f"{python} -m pip install {package_of(top)}"
    if top in _OURS:
        return [f"hint: {top} comes with launch, and the ranks' Python has it not: {install}"]
    return [f"hint: {install} where it is a package; a module of the project is looked for from its folder"]


def _explained(run: RunDir, project: str, name: str) -> list[str]:
    """Return lines on why `name`, a path relative to the project's folder `project`, was not frozen, and how to include
    it.
    """
    way_out = f"launch resume {run.id} --code --set 'code.include+=[{name}]' freezes it too, and so does code.include"
    return [
        f"{name} is in {project} and was not frozen: git ignores it, or code.exclude leaves it out",
        f"hint: {way_out} in the spec; large data is better named by its absolute path",
    ]
