"""Find out whether a file that a rank could not open is in the project but not in the frozen code."""

import os
import re
from pathlib import Path

from launcher.plan.model import Plan

_NOT_THERE = re.compile(r"No such file or directory: b?(['\"])(.+?)\1")


def left_out(said: str, plan: Plan, run: Path) -> str:
    """Return the name, within the project, of a file that a rank did not find because the code snapshot leaves it out;
    "" if the rank failed for any other reason.

    `said` is the text of the rank's exception, `run` the run's folder as its ranks see it.
    """
    found = _NOT_THERE.search(said)
    if found is None:
        return ""
    code = os.path.join(run, "code")
    name = os.path.relpath(os.path.join(run, plan.workdir, found[2]), code)
    if name == "." or name.startswith("..") or os.path.lexists(os.path.join(code, name)):
        return ""
    return name if os.path.exists(os.path.join(plan.project, name)) else ""
