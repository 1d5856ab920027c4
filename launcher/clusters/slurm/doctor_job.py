"""The job of `launch doctor slurm --try` as text: its options, its script, and what Slurm says of it. Pure."""

import os
import re
import shlex
from dataclasses import dataclass
from pathlib import Path

from launcher.clusters.batch.queue import Phase
from launcher.clusters.slurm.doctor_records import Folder, Stage
from launcher.clusters.slurm.queries.values import read_time
from launcher.clusters.slurm.states import read_state

_MINUTES = 3
_LEAST_MEMORY_MB, _MEMORY_MB = 4000, 2000  # torch with CUDA needs 1 GB
_FIELD = re.compile(r"(?:^|\s)(\w+)=(\S*)")


@dataclass(frozen=True, slots=True)
class Wish:
    """What the person asked for."""

    runs_root: Path
    rank_python: str
    partition: str | None = None
    account: str | None = None
    qos: str | None = None
    interface: str | None = None
    nodes: int | None = None
    within_s: float = 60.0


@dataclass(frozen=True, slots=True)
class Shape:
    """What the nodes offer."""

    nodes: int  # that take jobs
    gpus: int  # that each of them has
    memory_mb: int
    max_time_s: float


@dataclass(frozen=True, slots=True)
class Job:
    """What `scontrol show job` says of ours."""

    phase: Phase = Phase.UNKNOWN
    word: str = ""
    reason: str = ""
    nodes: str = ""
    starts_at: float | None = None
    exit_code: int = 0
    requeue: bool | None = None
    restarts: int = 0


def read_job(text: str) -> Job:
    fields = dict(_FIELD.findall(text))
    state = read_state(fields.get("JobState", ""))
    code = fields.get("ExitCode", "").partition(":")[0]
    nodes = fields.get("NodeList", "")
    return Job(
        state.phase,
        state.word,
        fields.get("Reason", ""),
        "" if nodes == "(null)" else nodes,
        read_time(fields.get("StartTime", "")),
        _number(code),
        {"0": False, "1": True}.get(fields.get("Requeue", "")),
        _number(fields.get("Restarts", "")),
    )


def _number(text: str) -> int:
    return int(text) if re.fullmatch(r"[0-9]{1,9}", text) else 0


def options(wish: Wish, shape: Shape, nodes: int) -> list[str]:
    """Those of sbatch, and so much time, that a job of this kind has."""
    chosen = {
        "job-name": "launch-doctor",
        "nodes": str(nodes),
        "ntasks-per-node": "1",
        "cpus-per-task": "1",
        "time": str(minutes(shape)),
        "gres": "gpu:1" if shape.gpus else None,
        "mem": f"{_MEMORY_MB}M" if shape.memory_mb >= _LEAST_MEMORY_MB else None,
        "partition": wish.partition,
        "account": wish.account,
        "qos": wish.qos,
        "chdir": "/",
        "output": os.devnull,
    }
    return ["--requeue", *(f"--{name}={value}" for name, value in chosen.items() if value is not None)]


def minutes(shape: Shape) -> int:
    return int(max(1, min(_MINUTES, shape.max_time_s // 60)))


def script(folder: Folder, nodes: int, python: str) -> str:
    """A shell looks first: where the folder or Python is missing, no program of ours can tell."""
    quoted = shlex.quote(str(folder.path))
    look = f"""\
stopped() {{ echo "stopped $SLURMD_NODENAME $1"; exit "$1"; }}
[ -d "$1" ] || stopped {Stage.NOT_THERE:d}
(: > "$1/seen-$SLURMD_NODENAME") 2> /dev/null || stopped {Stage.NOT_WRITABLE:d}
[ -x "$2" ] || stopped {Stage.NO_PYTHON:d}
"$2" -P -m launcher.clusters.slurm.doctor_probe "$1" || stopped $?
"""
    srun = [
        "srun", f"--nodes={nodes}", f"--ntasks={nodes}", "--ntasks-per-node=1", "--overlap", "--label",
        "--kill-on-bad-exit=0", "--wait=0", "--mpi=none", "--input=none", "--quiet",
        "/bin/sh", "-c", look, "look", str(folder.path), python,
    ]  # fmt: skip
    return f"""\
#!/bin/sh
[ -d {quoted} ] || exit {Stage.NOT_THERE:d}
(: > {quoted}/seen) 2> /dev/null || exit {Stage.NOT_WRITABLE:d}
exec {shlex.join(srun)} > {shlex.quote(str(folder.log))} 2>&1
"""
