"""The program of every pod of a run's JobSet: the batch process in the first pod, and in every other pod its node's
agent.

    python -m launcher.programs pod RUN_DIR      with what the JobSet has put into the environment

A pod other than the first waits until an attempt has it among its nodes, and exits when the run has ended. If one exits
with a code other than 0, or is lost, the JobSet ends all pods and starts them again.
"""

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path

import msgspec

from launcher.errors import LaunchError
from launcher.places.batch.batch import node_command
from launcher.plan.model import Plan
from launcher.run.attempts import newest
from launcher.run.durable import make_dir, readable, write_record
from launcher.run.layout import RunDir
from launcher.run.patience import waiting_for_disks
from launcher.run.processes import name_this
from launcher.run.records import AttemptEnd

FOLDER = "JOB_LAUNCH_PODS_FOLDER"  # the variable that names it
YOUNG_S, LOOK_S = 5.0, 0.5

_KIND = "k8s"


def main(argv: Sequence[str]) -> int:
    """Run the batch process in the first pod, else agents, for the run whose folder is `argv[0]`. Return 0 when the run
    has ended, or 1 if the pod is being removed.
    """
    os.umask(0o077)
    run, index = RunDir(Path(argv[0])), int(os.environ["JOB_COMPLETION_INDEX"])
    if index == 0:
        words = [sys.executable, "-P", "-m", "launcher.programs", "guard", _KIND, str(run.path)]
        os.execv(sys.executable, words)  # noqa: S606 - it is what it is for
    name_this("launch-super")
    with waiting_for_disks():
        return 0 if OtherPod(run, Path(os.environ[FOLDER]), index).serve() else 1


class OtherPod:
    """The program of a pod other than the first. As process 1 of its container it has to handle signals itself."""

    def __init__(self, run: RunDir, folder: Path, index: int) -> None:
        self._run, self._folder, self._index = run, folder, index
        self._told_to_leave = threading.Event()
        self._child: subprocess.Popen[bytes] | None = None
        signal.signal(signal.SIGTERM, self._leave)

    def serve(self) -> bool:
        """Run an agent in one attempt after the other; return True once the run has ended, or False if the pod
        is being removed.
        """
        served, host = 0, os.environ["JOB_LAUNCH_POD"]
        while not self._told_to_leave.is_set():
            attempt = newest(self._run)
            end = readable(attempt.end, AttemptEnd) if attempt is not None else None
            if end is not None and end.state.ended:
                return True
            plan = readable(attempt.plan, Plan) if attempt is not None else None
            if (
                attempt is None
                or plan is None
                or attempt.number <= served
                or host not in [one.host for one in plan.nodes]
            ):
                stand_by(self._folder, self._index)
                time.sleep(LOOK_S)
                continue
            served = attempt.number
            self._child = subprocess.Popen(node_command(_KIND, plan, attempt))
            if self._told_to_leave.is_set():  # while the agent was being started, so that nobody has told the agent
                self._child.terminate()
            self._child.wait()
        return False

    def _leave(self, *_: object) -> None:
        """Record that the pod is being removed, and end its agent."""
        self._told_to_leave.set()
        if self._child is not None:
            self._child.terminate()


class PodRecord(msgspec.Struct, frozen=True):
    """The name and address of a pod in one start of the JobSet, as the pod writes them to a file."""

    host: str
    address: str


def stand_by(folder: Path, index: int) -> None:
    """Write the name and address of this pod, the one with number `index`, to a file in the folder, which all pods
    share. It is called repeatedly while the pod waits, because `meet`, which reads the files in the first pod, ignores
    old ones, of an earlier start.
    """
    make_dir(folder)
    record = PodRecord(os.environ["JOB_LAUNCH_POD"], os.environ["JOB_LAUNCH_POD_ADDRESS"])
    write_record(folder / f"{index}.json", record)


def meet(folder: Path, count: int, within_s: float) -> dict[str, str]:
    """Write this first pod's own file into the shared `folder`, wait until all `count` pods have written theirs, and
    return {pod's name: its address} in the order of their indices.

    Raise LaunchError if that takes longer than `within_s`. A file counts only if it is hardly older than this pod's
    own, by the volume's clock, because pods of an earlier start may have left files.
    """
    deadline = time.monotonic() + within_s
    while True:
        stand_by(folder, 0)
        files = [folder / f"{index}.json" for index in range(count)]
        now = files[0].stat().st_mtime
        young = [file for file in files if file.exists() and file.stat().st_mtime > now - YOUNG_S]
        found = [record for file in young if (record := readable(file, PodRecord)) is not None]
        if len(found) == count:
            return {record.host: record.address for record in found}
        if time.monotonic() >= deadline:
            raise LaunchError(f"{count - len(found)} of {count} pods did not come within {within_s:g} s")
        time.sleep(LOOK_S)
