"""Describe what this machine offers and what ranks find on it, without torch and without starting a process."""

import contextlib
import os
import re
from collections.abc import Mapping
from pathlib import Path

import msgspec

from launcher.plan.facts import Machine
from launcher.plan.interpreter import packages_of, version_of
from launcher.run.records import Environment

_MODEL = re.compile(r"^Model:\s*(.+)$", re.MULTILINE)
_DRIVER = re.compile(r"Kernel Module\D*([0-9.]+)")
_DEVICE = re.compile(r"nvidia(\d+)")


def this_machine(environ: Mapping[str, str], devices: Path = Path("/dev")) -> Machine:
    """Return this machine's description: the cores that this process may use, and the GPUs in CUDA_VISIBLE_DEVICES or
    else every nvidiaN in the folder `devices`.
    """
    return Machine(cpus=len(os.sched_getaffinity(0)), gpus=_gpus(environ.get("CUDA_VISIBLE_DEVICES"), devices))


def _gpus(visible: str | None, devices: Path) -> tuple[str, ...]:
    """Return the names of the GPUs that a rank could use: the entries of `visible` (CUDA_VISIBLE_DEVICES) up to a -1,
    or if that is None the numbers from 0 on, one for each nvidiaN in the folder `devices`. Return none without such a
    file, whatever `visible` says.
    """
    numbers = sorted(int(found[1]) for entry in os.listdir(devices) if (found := _DEVICE.fullmatch(entry)))
    if visible is None or not numbers:
        # Asked for on a machine that has none, it names nothing that a rank could use.
        return tuple(str(number) for number in range(len(numbers)))
    named = [name.strip() for name in visible.split(",")]
    cut = named.index("-1") if "-1" in named else len(named)  # as CUDA reads it: nothing after -1 counts
    return tuple(name for name in named[:cut] if name)


def note_environment(path: Path, python: str, environ: Mapping[str, str]) -> None:
    """Write what ranks find on this machine (the version and packages of the interpreter `python`, CPUs, GPUs, their
    driver) to the new file `path`. Do nothing if the file exists or the disk refuses the write. `environ` are the
    variables of the node's ranks.
    """
    found = environment_of(python, environ)
    with contextlib.suppress(OSError):
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        with os.fdopen(fd, "wb") as file:
            file.write(msgspec.json.encode(found) + b"\n")


def environment_of(python: str, environ: Mapping[str, str], driver: Path = Path("/proc/driver/nvidia")) -> Environment:
    """Return what ranks find on this machine: the interpreter `python` with its version and packages, the number of
    CPUs, the GPUs, and the version of the NVIDIA driver, which the folder `driver` shows. `environ` are the variables
    of the ranks.
    """
    gpus = [_MODEL.search(_text(file)) for file in sorted(driver.glob("gpus/*/information"))]
    version, system = _DRIVER.search(_text(driver / "version")), os.uname()
    return Environment(
        host=system.nodename,
        python=python,
        version=version_of(python),
        packages=packages_of(python, environ),
        cpus=len(os.sched_getaffinity(0)),
        gpus=tuple(one[1].strip() for one in gpus if one is not None),
        driver=version[1] if version is not None else "",
        system=f"{system.sysname} {system.release}",
    )


def _text(file: Path) -> str:
    """Return the text of a file, or "" if it cannot be read."""
    try:
        return file.read_text(errors="replace")
    except OSError:
        return ""
