"""Which commit a project is at, and whether its files differ from it."""

import re
import subprocess
from pathlib import Path

from launcher.rundir.code.names import git_says
from launcher.rundir.records import Origin

_COMMIT = re.compile(rb"# branch\.oid ([0-9a-f]{40}|[0-9a-f]{64})")
_ENOUGH_S = 2.0


def origin_of(project: Path) -> Origin | None:
    """None where git is not there, knows nothing of this folder, has no commit yet, or takes too long to say."""
    words = ("status", "--porcelain=v2", "--branch", "--untracked-files=no", "--ignore-submodules=dirty")
    try:
        said = git_says(project, words, timeout_s=_ENOUGH_S)
    except subprocess.TimeoutExpired:
        return None
    lines = (said or b"").splitlines()
    found = next((match for line in lines if (match := _COMMIT.fullmatch(line))), None)
    if found is None:
        return None
    return Origin(found[1].decode(), any(not line.startswith(b"#") for line in lines))
