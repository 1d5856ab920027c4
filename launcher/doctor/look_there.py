"""What a machine is like, looked at and tried out on it; of what was tried nothing is left.

The standard library alone: on hosts that have nothing of ours this file is run as text
(`python -I -c TEXT ARGUMENTS`), and prints what it found.
"""

import dataclasses
import errno
import fcntl
import json
import os
import re
import resource
import shutil
import socket
import stat
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

MARK = "launch-look: "
MEMORY = "/dev/shm"  # noqa: S108 # nosec B108 - it is only looked at
_UNSYNCHRONISED = 5  # TIME_ERROR of adjtimex(2)
_STRUCT_TIMEX_BYTES = 512  # more than it has
_LOGINCTL = ["loginctl", "show-session", "-p", "KillUserProcesses", "-p", "KillOnlyUsers", "-p", "KillExcludeUsers"]
_LOGINCTL_S = 5.0
_NO_TORCH = "No module named 'torch'"


@dataclasses.dataclass(frozen=True)
class FolderFacts:
    """A folder that runs need: what it takes, or the nearest one above it that is there; and the room it has."""

    path: str
    at: str  # what was looked at
    who: str  # has tried it
    error: str = ""  # why nothing can be made there
    refusals: tuple[str, ...] = ()
    off_s: float = 0.0  # what the clock of its file system is ahead of the machine's
    free: int = 0
    free_files: int | None = None  # None where the file system makes room for them as they come


@dataclasses.dataclass(frozen=True)
class Torch:
    """The torch of an interpreter; without a version there is none that works, and `error` says why."""

    version: str = ""
    built_for: str = ""  # `CUDA 12.8`; nothing: for CPUs alone
    gpus: int = 0  # that it sees
    error: str = ""

    @property
    def words(self) -> str:
        """`2.10.0 (CUDA 12.8), sees 4 GPUs`"""
        seen = f", sees {self.gpus} GPU{'' if self.gpus == 1 else 's'}" if self.built_for else ""
        return f"{self.version} ({self.built_for or 'CPU only'}){seen}"


@dataclasses.dataclass(frozen=True)
class NodeFacts:
    """A machine, by what any user of it can find out."""

    cores: int
    memory: tuple[int, int] | None  # of /dev/shm: what is free, and in all
    open_files: tuple[int, int]  # that a process may have, and may ask for
    clock: float
    is_synchronised: bool
    folders: tuple[FolderFacts, ...]
    is_killed: bool = False  # what a user has started, when the login ends
    torch: Torch | None = None  # where it was asked for


def main(arguments: str) -> None:
    print(MARK + json.dumps(dataclasses.asdict(look(**json.loads(arguments)))), flush=True)


def look(folders: Sequence[str], user: str = "", torch: str = "") -> NodeFacts:
    """`user`: whose processes may be ended with a login; `torch`: the program that asks for it."""
    return NodeFacts(
        len(os.sched_getaffinity(0)),
        _space(MEMORY) if os.path.isdir(MEMORY) else None,
        resource.getrlimit(resource.RLIMIT_NOFILE),
        time.time(),
        _is_synchronised(),
        tuple(folder(path) for path in folders),
        bool(user) and _is_killed_at_logout(user),
        torch_of(sys.executable, torch, os.environ) if torch else None,
    )


def folder(path: str) -> FolderFacts:
    at = path
    while not os.path.isdir(at) and os.path.dirname(at) != at:
        at = os.path.dirname(at)
    who = f"user {os.geteuid()} on {socket.gethostname()}"
    try:
        made = Path(tempfile.mkdtemp(prefix=".launch-doctor-", dir=at))
    except OSError as error:
        return FolderFacts(path, at, who, error.strerror or str(error))
    try:
        refusals = tuple(f"{what} ({said})" for what, trial in _TRIALS.items() if (said := _failure(trial, made)))
        off_s = _clock_of(made) - time.time()
    finally:
        shutil.rmtree(made)
    disk = os.statvfs(at)
    return FolderFacts(path, at, who, "", refusals, off_s, _space(at)[0], disk.f_favail if disk.f_files else None)


def torch_of(python: str, program: str, environ: Mapping[str, str], limit_s: float = 60.0) -> Torch:
    """The torch that a script has which this interpreter runs. `program`: the text of `torch_there`."""
    try:
        done = subprocess.run(
            [python, "-c", program],
            capture_output=True, stdin=subprocess.DEVNULL, env=dict(environ), cwd="/", timeout=limit_s, check=False,
        )  # fmt: skip
    except OSError as error:
        return Torch(error=f"{python} cannot be started: {error.strerror}")
    except subprocess.TimeoutExpired:
        return Torch(error=f"import torch takes more than {limit_s:g} s")
    if done.returncode == 0:
        try:
            version, built_for, gpus = json.loads(done.stdout.decode(errors="replace").splitlines()[-1])
            return Torch(str(version), str(built_for), int(gpus))
        except (IndexError, TypeError, ValueError):
            return Torch(error="import torch prints what nobody asked for")
    said = done.stderr.decode(errors="replace").strip().splitlines() or [f"import torch ends with {done.returncode}"]
    return Torch(error="not installed" if _NO_TORCH in said[-1] else said[-1][:200])


def _try_fsync(folder: Path) -> None:
    draft, whole = folder / "draft", folder / "whole"
    with draft.open("wb") as file:
        file.write(b"whole")
        file.flush()
        os.fsync(file.fileno())
    whole.write_bytes(b"old")
    os.rename(draft, whole)
    itself = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(itself)
    finally:
        os.close(itself)
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
    "symbolic links": lambda folder: os.symlink(folder, folder / "link"),
    "FIFOs": lambda folder: os.mkfifo(folder / "fifo", 0o600),
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


def _space(path: str) -> tuple[int, int]:
    """Free for us, and in all."""
    found = os.statvfs(path)
    return found.f_bavail * found.f_frsize, found.f_blocks * found.f_frsize


def _is_synchronised() -> bool:
    try:
        import ctypes  # late: an interpreter may have been built without it
    except ImportError:
        return False
    nothing_to_set = ctypes.create_string_buffer(_STRUCT_TIMEX_BYTES)
    return ctypes.CDLL(None).adjtimex(nothing_to_set) not in (-1, _UNSYNCHRONISED)


def _is_killed_at_logout(user: str) -> bool:
    """Whether systemd-logind ends what a user has started when the login that started it ends."""
    try:
        in_a_session = re.search(r"/session-[^/]+\.scope", Path("/proc/self/cgroup").read_text())
        if not in_a_session or shutil.which(_LOGINCTL[0]) is None:
            return False
        done = subprocess.run(_LOGINCTL, capture_output=True, text=True, timeout=_LOGINCTL_S, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return False  # it does not run here
    return kills(done.stdout, user)


def kills(settings: str, user: str) -> bool:
    """By what logind says of itself. Lingering spares what the user's own systemd runs, nothing else."""
    said = dict(line.partition("=")[::2] for line in settings.splitlines())
    only = said.get("KillOnlyUsers", "").split()
    spared = user in said.get("KillExcludeUsers", "").split() or (only and user not in only)
    return said.get("KillUserProcesses") == "yes" and not spared


if __name__ == "__main__":
    main(sys.argv[1])
