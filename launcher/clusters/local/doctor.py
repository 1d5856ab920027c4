"""A check-up of this machine: whatever a run on it needs, looked at and tried out. Leaves nothing behind."""

import ctypes
import errno
import fcntl
import os
import platform
import resource
import shutil
import socket
import stat
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from launcher.agent.memory_tier import MEMORY
from launcher.clusters.file_systems import file_system_of, nearest_folder
from launcher.clusters.findings import Finding, ok, problem, warning
from launcher.clusters.machine import this_machine
from launcher.clusters.torch_there import Torch, torch_of
from launcher.rundir.durable import sync_dir

_SCARCE_BYTES, _NO_BYTES = 5_000_000_000, 100_000_000
_SCARCE_FILES = 10_000
_SMALL_MEMORY_BYTES = 512_000_000  # containers are given 64 MB
_FEW_FILES = 1024
_CLOCK_S = 5.0
_UNSYNCHRONISED = 5  # TIME_ERROR of adjtimex(2)
_STRUCT_TIMEX_BYTES = 512  # more than it has


@dataclass(frozen=True, slots=True)
class Here:
    """What is looked at."""

    runs_root: Path
    state_folder: Path
    rank_python: str  # the interpreter that would run ranks


def check_up(here: Here, environ: Mapping[str, str]) -> Iterator[Finding]:
    """Everything about this machine, as it is found; torch last, because asking it takes seconds."""
    yield ok("python", f"{platform.python_version()}, {sys.executable}")
    yield ok("cores", str(len(os.sched_getaffinity(0))))
    gpus = this_machine(environ).gpus
    yield ok("GPUs", f"{len(gpus)} ({', '.join(gpus)})" if gpus else "none: ranks compute on the cores")
    yield memory_finding(*_space(MEMORY)) if MEMORY.is_dir() else no_memory()
    yield from folder_findings("runs root", here.runs_root, "LAUNCH_RUNS")
    yield from folder_findings("state folder", here.state_folder, "XDG_STATE_HOME")
    yield files_finding(*resource.getrlimit(resource.RLIMIT_NOFILE))
    yield clock_finding(time.time(), _is_synchronised())
    yield torch_finding(torch_of(here.rank_python, environ), here.rank_python, len(gpus))


# What is said of what was found. Pure.


def torch_finding(torch: Torch, python: str, gpus: int) -> Finding:
    if torch.error == "not installed":
        hint = (
            "a job that trains needs it: pip install torch there, or run.python in the spec names another interpreter"
        )
        return warning("torch", f"not installed in {python}", hint)
    if torch.error:
        return warning("torch", f"{python}: {torch.error}", f"`{python} -c 'import torch'` shows all of it")
    if gpus > torch.gpus:
        why = "its build is for CPUs alone" if not torch.built_for else "`nvidia-smi` shows whether the driver works"
        return warning("torch", f"{torch.words}, but {gpus} there; in {python}", why)
    return ok("torch", f"{torch.words}; in {python}")


def memory_finding(free: int, total: int) -> Finding:
    text = f"{_size(total)}, {_size(free)} of it free"
    if total < _SMALL_MEMORY_BYTES:
        hint = "DataLoader workers and checkpoint.memory_every need more; a container gets it by --shm-size"
        return warning(str(MEMORY), text, hint)
    return ok(str(MEMORY), text)


def no_memory() -> Finding:
    return warning(str(MEMORY), "not there", "DataLoader workers need it; mount a tmpfs there")


def space_finding(about: str, where: str, free: int, free_files: int | None, elsewhere: str) -> Finding:
    left = f"{_size(free)} free"
    if free_files is not None and free_files < _SCARCE_FILES:
        left += f", room for {free_files} more files"
    hint = f"delete what is not needed, or {elsewhere}"
    if free < _NO_BYTES or free_files == 0:
        return problem(about, f"{where}: {left}", hint)
    if free < _SCARCE_BYTES or (free_files is not None and free_files < _SCARCE_FILES):
        return warning(about, f"{where}: {left}", hint)
    return ok(about, f"{where}: {left}")


def files_finding(soft: int, hard: int) -> Finding:
    if soft == resource.RLIM_INFINITY or soft > _FEW_FILES:
        return ok("open files", "no limit" if soft == resource.RLIM_INFINITY else f"at most {soft} a process")
    most = "" if hard == soft else f": ulimit -n {'unlimited' if hard == resource.RLIM_INFINITY else hard}"
    if soft == _FEW_FILES:
        return ok("open files", f"at most {soft} a process; DataLoader workers may need more{most}")
    return warning("open files", f"at most {soft} a process: too few for DataLoader workers", f"raise it{most}")


def clock_finding(now: float, synchronised: bool) -> Finding:
    when = time.strftime("%Y-%m-%d %H:%M:%S %Z", time.localtime(now))
    return ok("clock", f"{when}, {'kept by a time service' if synchronised else 'not known to be kept by any'}")


def ahead(seconds: float) -> str:
    return f"{abs(seconds):.1f} s {'ahead of' if seconds > 0 else 'behind'}"


# What is tried out.


def folder_findings(about: str, folder: Path, variable: str) -> Iterator[Finding]:
    """Whether it, or what will be made there, takes what we do with files; and how much room there is.

    `variable`: the one of the environment that names another folder.
    """
    elsewhere = f"set {variable} to a folder on another file system"
    try:
        there = nearest_folder(folder)
        kind = file_system_of(there).kind
        made = Path(tempfile.mkdtemp(prefix=".launch-doctor-", dir=there))
    except OSError as error:
        who = f"user {os.geteuid()} on {socket.gethostname()}"
        yield problem(about, f"{folder}: {who} cannot write there: {error.strerror}", f"change that, or {elsewhere}")
        return
    try:
        refusals = [f"{what} ({said})" for what, trial in _TRIALS.items() if (said := _failure(trial, made))]
        off_s = _clock_of(made) - time.time()
    finally:
        shutil.rmtree(made)
    where = f"{folder}{'' if there == folder else ' (not there yet)'}, {kind}"
    if refusals:
        yield problem(about, f"{where}: does not offer {', '.join(refusals)}", elsewhere)
        return
    yield space_finding(about, where, _space(there)[0], _free_files(there), elsewhere)
    if abs(off_s) > _CLOCK_S:
        text = f"the clock of its file system is {ahead(off_s)} this machine's"
        yield warning(about, text, "the times of files and those in logs will differ by so much")


def _try_fsync(folder: Path) -> None:
    draft, whole = folder / "draft", folder / "whole"
    with draft.open("wb") as file:
        file.write(b"whole")
        file.flush()
        os.fsync(file.fileno())
    whole.write_bytes(b"old")
    os.rename(draft, whole)
    sync_dir(folder)
    if whole.read_bytes() != b"whole":
        raise OSError(errno.EIO, "another content was read than was written")


def _try_lock(folder: Path) -> None:
    """Somebody else must be kept out, and let in afterwards."""
    path = folder / "lock"
    with path.open("wb") as mine, path.open("rb") as other:
        fcntl.flock(mine, fcntl.LOCK_EX | fcntl.LOCK_NB)
        try:
            fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return
        raise OSError(errno.ENOLCK, "two get the same lock")


def _try_link(folder: Path) -> None:
    first, second = folder / "first", folder / "second"
    first.write_bytes(b"")
    os.link(first, second)
    try:
        os.link(first, second)
    except FileExistsError:
        return
    raise OSError(errno.EIO, "a name is given twice")


def _try_fifo(folder: Path) -> None:
    os.mkfifo(folder / "fifo", 0o600)


def _try_symlink(folder: Path) -> None:
    (folder / "link").symlink_to(folder)


def _try_mode(folder: Path) -> None:
    path = folder / "private"
    path.touch(mode=0o600)
    path.chmod(0o600)
    if stat.S_IMODE(path.stat().st_mode) != 0o600:
        raise OSError(errno.EPERM, f"mode {stat.S_IMODE(path.stat().st_mode):o}")


_TRIALS: Mapping[str, Callable[[Path], None]] = {
    "fsync and rename": _try_fsync,
    "flock": _try_lock,
    "hard links": _try_link,
    "symbolic links": _try_symlink,
    "FIFOs": _try_fifo,
    "private files": _try_mode,
}


def _failure(trial: Callable[[Path], None], folder: Path) -> str:
    try:
        trial(folder)
    except OSError as error:
        return error.strerror or str(error)
    return ""


def _clock_of(folder: Path) -> float:
    path = folder / "now"
    path.touch()
    return path.stat().st_mtime


def _space(path: Path) -> tuple[int, int]:
    """Free for us, and in all."""
    found = os.statvfs(path)
    return found.f_bavail * found.f_frsize, found.f_blocks * found.f_frsize


def _free_files(path: Path) -> int | None:
    """None where the file system makes room for them as they come."""
    found = os.statvfs(path)
    return found.f_favail if found.f_files else None


def _is_synchronised() -> bool:
    nothing_to_set = ctypes.create_string_buffer(_STRUCT_TIMEX_BYTES)
    return ctypes.CDLL(None).adjtimex(nothing_to_set) not in (-1, _UNSYNCHRONISED)


def _size(count: int) -> str:
    amount, units = float(count), iter(("B", "kB", "MB", "GB", "TB"))
    unit = next(units)
    while amount >= 1000 and unit != "TB":
        amount, unit = amount / 1000, next(units)
    return f"{amount:.3g} {unit}"
