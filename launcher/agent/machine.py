"""What this machine offers, found without torch and without starting a process."""

import os
import re
from collections.abc import Mapping
from pathlib import Path

from launcher.plan.facts import Machine

_DEVICE = re.compile(r"nvidia(\d+)")


def this_machine(environ: Mapping[str, str], devices: Path = Path("/dev")) -> Machine:
    """Cores that we may use, and GPUs: those of CUDA_VISIBLE_DEVICES, else every /dev/nvidiaN."""
    return Machine(cpus=len(os.sched_getaffinity(0)), gpus=_gpus(environ.get("CUDA_VISIBLE_DEVICES"), devices))


def _gpus(visible: str | None, devices: Path) -> tuple[str, ...]:
    numbers = sorted(int(found[1]) for entry in os.listdir(devices) if (found := _DEVICE.fullmatch(entry)))
    if visible is None or not numbers:
        # Asked for on a machine that has none, it names nothing that a rank could use.
        return tuple(str(number) for number in range(len(numbers)))
    named = [name.strip() for name in visible.split(",")]
    cut = named.index("-1") if "-1" in named else len(named)  # as CUDA reads it: nothing after -1 counts
    return tuple(name for name in named[:cut] if name)
