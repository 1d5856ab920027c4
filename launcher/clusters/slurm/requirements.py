"""What a run needs on the cluster besides nodes, as far as the machine that submits it can tell."""

import os
import shlex
import shutil

from launcher.clusters.slurm.container import container_of, is_path
from launcher.clusters.slurm.reach import ask

_PYXIS = "--container-image"


def container_problems(text: str) -> list[str]:
    """Why nothing could be started in the spec's container; empty: nothing speaks against it."""
    try:
        container = container_of(text, (), gpus=False)
    except ValueError as error:
        return [f"cannot be read as words: {error}"]
    if container is None:
        return []
    problems = []
    if container.program == _PYXIS:
        if _PYXIS not in ask(["srun", "--help"]).out:
            problems.append(
                f"srun here has no option {_PYXIS}, which Pyxis brings; write `apptainer exec IMAGE` instead"
            )
    elif shutil.which(container.program) is None:
        problems.append(f"no `{container.program}` on PATH; the nodes need it to open {shlex.split(text)[-1]}")
    path = is_path(text)
    if path is not None and not os.path.exists(path):
        problems.append(f"no file {path}")
    return problems
