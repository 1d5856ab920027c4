"""Running a command inside the spec's container: by Pyxis, as options of srun; by apptainer, as a line before it. Pure.

What the launcher needs inside is mounted under its own path: the run's folder, the interpreter, the launcher itself.
"""

import shlex
from collections.abc import Sequence
from dataclasses import dataclass

_LINE_PROGRAMS = ("apptainer", "singularity")


@dataclass(frozen=True, slots=True)
class Container:
    """How processes get inside."""

    program: str  # what has to be there for it: apptainer, singularity, or Pyxis' option of srun
    srun_options: tuple[str, ...]  # not empty: only srun can start it
    prefix: tuple[str, ...]


def container_of(text: str | None, mounts: Sequence[str], gpus: bool) -> Container | None:
    """What the spec's `slurm.container` means; None where there is none."""
    if text is None:
        return None
    words = shlex.split(text)
    program = words[0].rpartition("/")[2]
    if program in _LINE_PROGRAMS and len(words) > 1:
        return Container(words[0], (), tuple(_with_binds(words, mounts)))
    if text.endswith(".sif"):
        line = ["apptainer", "exec", *(["--nv"] if gpus else []), text]
        return Container("apptainer", (), tuple(_with_binds(line, mounts)))
    binds = ",".join(f"{mount}:{mount}" for mount in mounts)
    options = (f"--container-image={text}", f"--container-mounts={binds}", "--container-workdir=/")
    return Container("--container-image", options, ())


def is_path(text: str) -> str | None:
    """The file on this file system that the container is, where it is one."""
    words = shlex.split(text)
    last = words[-1]
    return last if last.startswith("/") else None


def _with_binds(line: Sequence[str], mounts: Sequence[str]) -> list[str]:
    """The binds go right behind `exec`."""
    at = next((index + 1 for index, word in enumerate(line) if word in ("exec", "run")), 1)
    binds = [word for mount in mounts for word in ("--bind", mount)]
    return [*line[:at], *binds, *line[at:]]
