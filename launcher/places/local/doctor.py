"""The checks of `launch doctor` on this machine; they leave nothing behind."""

import os
import platform
import subprocess
import sys
from collections.abc import Iterator, Mapping

from launcher.health import checks
from launcher.health.doctor_request import DoctorRequest
from launcher.health.evidence import DEVICE_CHECK, DeviceHealth, Ending, Fitness, devices_of, judge
from launcher.health.findings import Finding, ok, problem, warning
from launcher.health.machine_there import look, torch_of
from launcher.node.machine import this_machine
from launcher.run.registry import state_folder

_BOUND_S = 120.0  # with the import of torch, which may be the first one from a slow disk


def check_up(request: DoctorRequest, _tell: object) -> Iterator[Finding]:
    """Yield all findings about this machine; torch comes last, because its import takes seconds."""
    request.refuse_all_but("health")
    gpus = this_machine(os.environ).gpus
    if request.health:
        yield from health_findings(request.python, len(gpus), os.environ)
        return
    found = look([str(request.runs_root), str(state_folder())])
    runs_root, state = found.folders
    yield ok("python", f"{platform.python_version()}, {sys.executable}")
    yield ok("cores", str(found.cores))
    yield checks.gpus_finding(gpus)
    yield checks.memory_finding(found.memory)
    yield from checks.folder_findings("runs root", runs_root, "LAUNCH_RUNS")
    yield from checks.folder_findings("state folder", state, "XDG_STATE_HOME")
    yield checks.files_finding(*found.open_files)
    yield checks.clock_finding(found.clock, is_synchronised=found.is_synchronised)
    yield checks.torch_finding(torch_of(request.python, os.environ), request.python, len(gpus))


def health_findings(python: str, gpus: int, environ: Mapping[str, str]) -> Iterator[Finding]:
    """Yield a finding about each device: the CPU and `gpus` GPUs, checked in the ranks' interpreter `python` with the
    variables `environ`. The last finding notes that links are not measured here.
    """
    for device in devices_of(gpus):
        health = _checked(python, device, environ)
        match health.fitness:
            case Fitness.FIT:
                yield ok("health", health.text)
            case Fitness.UNFIT:
                hint = "with `recovery: {health: true}` a run has no ranks on such a node"
                yield problem("health", health.text, hint)
            case Fitness.UNKNOWN:
                yield warning("health", health.text, f"nothing is known of it; {python} would run ranks")
    yield ok("links", "none on one machine: runs measure those between their nodes, `launch doctor POOL` a pool's")


def _checked(python: str, device: str, environ: Mapping[str, str]) -> DeviceHealth:
    """Check one device, such as `cuda:0` or `cpu`, in the interpreter `python` with the variables `environ`, and return
    its health, which is unknown if the interpreter cannot be started. A check that takes too long is killed and judged
    by what it printed.
    """
    try:
        done = subprocess.run(
            [python, str(DEVICE_CHECK), device],
            stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, stdin=subprocess.DEVNULL,
            env=dict(environ), cwd="/", timeout=_BOUND_S, check=False,
        )  # fmt: skip
    except OSError as error:
        return DeviceHealth(device, Fitness.UNKNOWN, f"{device}: {python} cannot be started: {error.strerror}")
    except subprocess.TimeoutExpired as error:
        return judge(device, (error.stdout or b"").splitlines(), Ending(after_s=_BOUND_S))
    ended = done.returncode
    ending = Ending(code=ended) if ended >= 0 else Ending(signal=-ended)
    return judge(device, done.stdout.splitlines(), ending)
