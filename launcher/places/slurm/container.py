"""Run a command inside the container that the spec names: with Pyxis by options of srun, with apptainer by words before
the command.

The run's folder, the interpreter and the launcher are mounted inside under their own paths.
"""

import os
import shlex
import shutil
from collections.abc import Sequence

import msgspec

from launcher.places.slurm.reach import ask

_PYXIS = "--container-image"
_LINE_PROGRAMS = ("apptainer", "singularity")


class Container(msgspec.Struct, frozen=True):
    """A way to start a process in a container: by `srun_options` (Pyxis), or by the words in `prefix` before its
    command.

    `program` is what has to be installed for that, such as apptainer.
    """

    program: str  # what has to be installed: apptainer, singularity, or Pyxis' option of srun
    srun_options: tuple[str, ...]  # if not empty, only srun can start it
    prefix: tuple[str, ...]  # words before the command, if no srun is needed


def container_of(text: str | None, mounts: Sequence[str], gpus: bool) -> Container | None:
    """Return how to start processes in the container that the spec's `slurm.container` (`text`) describes, or None if
    it is not set; raise ValueError if it is neither a command nor an image.

    `mounts` are the paths to show inside it; `gpus` is True if the job has GPUs, which are then shown too.
    """
    if text is None:
        return None
    words = shlex.split(text)
    if not words or not words[0]:
        raise ValueError("there is none")
    program = words[0].rpartition("/")[2]
    if program in _LINE_PROGRAMS and len(words) > 1:
        return Container(words[0], (), tuple(_with_binds(words, mounts)))
    if text.endswith(".sif"):
        line = ["apptainer", "exec", *(["--nv"] if gpus else []), text]
        return Container("apptainer", (), tuple(_with_binds(line, mounts)))
    binds = ",".join(f"{mount}:{mount}" for mount in mounts)
    options = (f"{_PYXIS}={text}", f"--container-mounts={binds}", "--container-workdir=/")
    return Container(_PYXIS, options, ())


def image_path(text: str) -> str | None:
    """Return the path of the container's image, or None if the image is no absolute path, such as one of a registry.

    `text` is the spec's `slurm.container`: an image, or a command whose last word is the image.
    """
    words = shlex.split(text)
    last = words[-1]
    return last if last.startswith("/") else None


def _with_binds(line: Sequence[str], mounts: Sequence[str]) -> list[str]:
    """Return the container command `line` with `--bind PATH`, for each path in `mounts`, right after its word `exec` or
    `run`; the paths are the same inside the container.
    """
    at = next((index + 1 for index, word in enumerate(line) if word in ("exec", "run")), 1)
    binds = [word for mount in mounts for word in ("--bind", mount)]
    return [*line[:at], *binds, *line[at:]]


def container_problems(text: str) -> list[str]:
    """Return the reasons why nothing could start in the container `text`, written as in `slurm.container`, as far as
    this machine shows: a program or an image is missing. Return an empty list if there are none.
    """
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
    path = image_path(text)
    if path is not None and not os.path.exists(path):
        problems.append(f"no file {path}")
    return problems
