"""`launch doctor`: a check-up of this machine. Leaves nothing behind."""

import os
import platform
import sys
from collections.abc import Iterator

from launcher.health import checks
from launcher.health.devices import health_findings
from launcher.health.findings import Finding, ok
from launcher.health.machine_there import look, torch_of
from launcher.health.wish import DoctorWish
from launcher.node.machine import this_machine
from launcher.run.registry import state_folder


def check_up(wish: DoctorWish, _tell: object) -> Iterator[Finding]:
    """Yield findings about this machine; torch comes last, because asking it takes seconds."""
    wish.refuse_all_but("health")
    gpus = this_machine(os.environ).gpus
    if wish.health:
        yield from health_findings(wish.python, len(gpus), os.environ)
        return
    found = look([str(wish.runs_root), str(state_folder())])
    runs_root, state = found.folders
    yield ok("python", f"{platform.python_version()}, {sys.executable}")
    yield ok("cores", str(found.cores))
    yield checks.gpus_finding(gpus)
    yield checks.memory_finding(found.memory)
    yield from checks.folder_findings("runs root", runs_root, "LAUNCH_RUNS")
    yield from checks.folder_findings("state folder", state, "XDG_STATE_HOME")
    yield checks.files_finding(*found.open_files)
    yield checks.clock_finding(found.clock, is_synchronised=found.is_synchronised)
    yield checks.torch_finding(torch_of(wish.python, os.environ), wish.python, len(gpus))
