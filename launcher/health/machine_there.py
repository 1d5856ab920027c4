"""Inspect a machine and its connections to others, leaving nothing behind. This file is run on a host as text and
answers requests over stdin and stdout, so it uses only the standard library.

Where the launcher is not installed the file runs as text (`python -I -c TEXT`), receives JSON lines on stdin, and ends
when stdin ends; `python -c TEXT torch` reports the torch of an interpreter.
"""

from __future__ import annotations  # that interpreter may be as old as Python 3.9

import contextlib
import errno
import fcntl
import hmac
import json
import os
import random
import re
import resource
import secrets
import select
import shutil
import socket
import stat
import statistics
import struct
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence  # noqa: TC003 - its classes are read as types elsewhere
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, BinaryIO

MEMORY = "/dev/shm"  # noqa: S108 # nosec B108 - it is only looked at
_UNSYNCHRONISED = 5  # TIME_ERROR of adjtimex(2)
_STRUCT_TIMEX_BYTES = 512  # more than it has
_LOGINCTL = ["loginctl", "show-session", "-p", "KillUserProcesses", "-p", "KillOnlyUsers", "-p", "KillExcludeUsers"]
_LOGINCTL_S = 5.0
_NO_TORCH = "No module named 'torch'"
PINGS = 5
FLOOD_S, FLOOD_BYTES = 1.0, 64_000_000
_PIECE = 256 * 1024
_CONNECT_S, _SILENT_S = 3.0, 5.0
_FASTEST, _LONGEST = 1e15, 512
_MASTER_PORTS = (20_000, 32_000)  # where a run's MASTER_PORT is
_TRIES = 64
_NONCE_BYTES, _PROOF_BYTES = 16, 32


@dataclass(frozen=True)
class FolderFacts:
    """Facts about a folder that runs need, found by trying file operations.

    `at` is the folder itself or the nearest one above that exists, `who` the user and machine that tried, `error` why
    nothing can be created there, `refusals` the operations that failed, `off_s` by how much the clock of its file
    system is ahead. `free_files` is None if the file system sets no limit.
    """

    path: str
    at: str  # the folder that was tried: itself, or the nearest one above
    who: str  # user and machine that tried
    error: str = ""  # why nothing can be created there
    refusals: tuple[str, ...] = ()
    off_s: float = 0.0  # by how much the file system's clock is ahead of the machine's
    free: int = 0  # bytes
    free_files: int | None = None  # None: the file system sets no limit


@dataclass(frozen=True)
class Torch:
    """The torch of an interpreter; without a version no torch works, and `error` says why."""

    version: str = ""
    built_for: str = ""  # such as `CUDA 12.8`; "": CPUs only
    gpus: int = 0  # number of GPUs that torch finds
    error: str = ""

    @property
    def words(self) -> str:
        """Return a description such as `2.10.0 (CUDA 12.8), sees 4 GPUs`."""
        seen = f", sees {self.gpus} GPU{'' if self.gpus == 1 else 's'}" if self.built_for else ""
        return f"{self.version} ({self.built_for or 'CPU only'}){seen}"


@dataclass(frozen=True)
class MachineFacts:
    """Facts about a machine that any user can find out.

    `memory` is (free, total) bytes of /dev/shm, `open_files` the (soft, hard) limit, `is_synchronised` whether a time
    service keeps the clock, `is_killed` whether logind ends a user's processes at logout. `folders` has the
    facts about each folder in the request, and `torch` is None unless it was asked for.
    """

    cores: int  # that a process of the user may use
    memory: tuple[int, int] | None  # (free, total) bytes of /dev/shm
    open_files: tuple[int, int]  # (soft, hard) limit of a process
    clock: float  # Unix time
    is_synchronised: bool
    folders: tuple[FolderFacts, ...]
    is_killed: bool = False  # a user's processes are ended at logout
    torch: Torch | None = None  # only if it was asked for


@dataclass(frozen=True)
class OpenDoors:
    """The two ports on which this machine listens for connections from others: one from 20,000 to 32,000, as a
    MASTER_PORT is, and one that the kernel chose. `error` says why there are none; the ports are then 0.
    """

    ports: tuple[int, int] = (0, 0)
    error: str = ""


@dataclass(frozen=True)
class Measured:
    """The measured connection to another machine: its round trip and rate, 0 if not measured. If it failed, `error`
    says why, and `port` at which of the other machine's ports.
    """

    round_trip_s: float = 0.0
    bytes_per_s: float = 0.0
    error: str = ""  # why it failed; "": it did not
    port: int = 0  # at which it failed; 0: at none


def main() -> None:
    """Answer requests, JSON lines on stdin, until they end."""
    if sys.argv[1:] == ["torch"]:
        print(json.dumps(_own_torch()))
        return
    for line in sys.stdin:
        print(json.dumps(asdict(answer(json.loads(line)))), flush=True)


def answer(asked: dict[str, Any]) -> MachineFacts | OpenDoors | Measured:
    """Carry out the request `asked`, whose `do` names a function of this file, and return its answer."""
    found: MachineFacts | OpenDoors | Measured = _ANSWERS[asked.pop("do")](**asked)
    return found


# The machine


def look(folders: Sequence[str], user: str = "", *, torch: bool = False) -> MachineFacts:
    """Return the facts about this machine (its cores, shared memory, limit of open files and clock) and the folders.

    With a user name in `user`, check also whether that user's processes are ended at logout; with `torch`, add the
    facts about this interpreter's torch.
    """
    return MachineFacts(
        len(os.sched_getaffinity(0)),
        _space(MEMORY) if os.path.isdir(MEMORY) else None,
        resource.getrlimit(resource.RLIMIT_NOFILE),
        time.time(),
        _is_synchronised(),
        tuple(folder(path) for path in folders),
        bool(user) and _is_killed_at_logout(user),
        torch_of(sys.executable, os.environ) if torch else None,
    )


def folder(path: str) -> FolderFacts:
    """Return the facts about a folder, found by trying file operations in a new folder inside it, which is removed
    again. If the folder does not exist, its nearest parent that does is examined.
    """
    at = path
    while not os.path.isdir(at) and os.path.dirname(at) != at:
        at = os.path.dirname(at)
    who = f"user {os.geteuid()} on {socket.gethostname()}"
    try:
        made = Path(tempfile.mkdtemp(prefix=".launch-doctor-", dir=at))
    except OSError as error:
        return FolderFacts(path, at, who, _why(error))
    try:
        refusals = tuple(f"{what} ({said})" for what, trial in _TRIALS.items() if (said := _failure(trial, made)))
        off_s = _clock_of(made) - time.time()
    finally:
        shutil.rmtree(made)
    disk = os.statvfs(at)
    return FolderFacts(path, at, who, "", refusals, off_s, _space(at)[0], disk.f_favail if disk.f_files else None)


def _try_fsync(folder: Path) -> None:
    """Check that files and folders can be flushed; raise OSError if not."""
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
    """Check that a lock (flock) on a file in this folder excludes a second holder; raise OSError if it does not."""
    path = folder / "lock"
    with path.open("wb") as mine, path.open("rb") as other:
        fcntl.flock(mine, fcntl.LOCK_EX | fcntl.LOCK_NB)
        try:
            fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return
        raise OSError(errno.ENOLCK, "two get the same lock")


def _try_link(folder: Path) -> None:
    """Check that a hard link is possible, and that a second one of the same name is refused; raise OSError if not."""
    first, second = folder / "first", folder / "second"
    first.write_bytes(b"")
    os.link(first, second)
    try:
        os.link(first, second)
    except FileExistsError:
        return
    raise OSError(errno.EIO, "a name is given twice")


def _try_mode(folder: Path) -> None:
    """Check that a file in `folder` can be made private to the user (mode 600); raise OSError if not. The file stays
    there, for the caller to remove.
    """
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
    """Return the error with which `trial`, a file operation, fails in the folder, or "" if it succeeds."""
    try:
        trial(folder)
    except OSError as error:
        return _why(error)
    return ""


def _clock_of(folder: Path) -> float:
    """Return the Unix time that the folder's file system, which may be a server's, gives to a file that is changed now.
    The file, `now` in this folder, is left for the caller to remove.
    """
    path = folder / "now"
    path.touch()
    return path.stat().st_mtime


def _space(path: str) -> tuple[int, int]:
    """Return (free bytes, total bytes) of the file system."""
    found = os.statvfs(path)
    return found.f_bavail * found.f_frsize, found.f_blocks * found.f_frsize


def _is_synchronised() -> bool:
    """Return whether the kernel reports that a time service (such as chrony) keeps this machine's clock right; False
    also if the kernel cannot be asked.
    """
    try:
        import ctypes  # late: an interpreter may have been built without it
    except ImportError:
        return False
    nothing_to_set = ctypes.create_string_buffer(_STRUCT_TIMEX_BYTES)
    return ctypes.CDLL(None).adjtimex(nothing_to_set) not in (-1, _UNSYNCHRONISED)


def _is_killed_at_logout(user: str) -> bool:
    """Return whether systemd-logind ends the user's processes when the user logs out, by the settings that loginctl
    shows; False if this process belongs to no login session.
    """
    try:
        in_a_session = re.search(r"/session-[^/]+\.scope", Path("/proc/self/cgroup").read_text())
        if not in_a_session or shutil.which(_LOGINCTL[0]) is None:
            return False
        done = subprocess.run(_LOGINCTL, capture_output=True, text=True, timeout=_LOGINCTL_S, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return False  # it does not run here
    return kills(done.stdout, user)


def kills(settings: str, user: str) -> bool:
    """Return whether logind's settings (the text of its configuration) end the user's processes at logout.

    Lingering makes no difference: it protects only what the user's own systemd runs.
    """
    said = dict(line.partition("=")[::2] for line in settings.splitlines())
    only = said.get("KillOnlyUsers", "").split()
    spared = user in said.get("KillExcludeUsers", "").split() or (only and user not in only)
    return said.get("KillUserProcesses") == "yes" and not spared


def _why(error: Exception) -> str:
    """Return the text of an error, for people."""
    return (getattr(error, "strerror", None) or str(error) or type(error).__name__)[:200]


# torch


def torch_of(python: str, environ: Mapping[str, str], limit_s: float = 60.0) -> Torch:
    """Return the torch that a script in the interpreter `python` would import, with the environment `environ`. If the
    import fails or takes longer than `limit_s` seconds, the result has no version, and the reason as its `error`.
    """
    # This program's own text: a file here, a word of the command line where it is run as text.
    text = Path(__file__).read_text() if "__file__" in globals() else sys.orig_argv[sys.orig_argv.index("-c") + 1]
    try:
        done = subprocess.run(
            [python, "-c", text, "torch"],
            capture_output=True, stdin=subprocess.DEVNULL, env=dict(environ), cwd="/", timeout=limit_s, check=False,
        )  # fmt: skip
    except OSError as error:
        return Torch(error=f"{python} cannot be started: {error.strerror}")
    except subprocess.TimeoutExpired:
        return Torch(error=f"import torch takes more than {limit_s:g} s")
    if done.returncode == 0:
        try:
            version, built_for, gpus = json.loads(done.stdout.decode(errors="replace").splitlines()[-1])
            return Torch(str(version)[:200], str(built_for)[:200], int(gpus))
        except (IndexError, TypeError, ValueError, RecursionError, OverflowError):
            return Torch(error="import torch prints unexpected output")
    said = done.stderr.decode(errors="replace").strip().splitlines() or [f"import torch ends with {done.returncode}"]
    return Torch(error="not installed" if _NO_TORCH in said[-1] else said[-1][:200])


def _own_torch() -> tuple[str, str, int]:
    """Return (version, CUDA or ROCm build, number of GPUs that it sees) of this interpreter's torch; raise what its
    import raises. The build is "" for a torch for CPUs.
    """
    import torch  # late: of this program only what is run for it needs it

    cuda, hip = torch.version.cuda, torch.version.hip
    built_for = f"CUDA {cuda}" if cuda else f"ROCm {hip}" if hip else ""
    return torch.__version__, built_for, torch.cuda.device_count() if torch.cuda.is_available() else 0


# The ways between machines


def open_doors(address: str, token: str) -> OpenDoors:
    """Listen on two ports of this address and return them, or an error if that fails: one from 20,000 to 32,000, as
    runs use for MASTER_PORT, and one that the kernel chooses.

    Threads then answer, until this process ends, each caller that proves that it has `token`.
    """
    if not address:
        return OpenDoors(error="its address is not known")
    ports = []
    try:
        family, _, _, _, place = socket.getaddrinfo(address, 0, type=socket.SOCK_STREAM)[0]
        for choices in ([random.SystemRandom().randint(*_MASTER_PORTS) for _ in range(_TRIES)], []):
            door = _bound(family, str(place[0]), choices)
            door.listen()
            ports.append(int(door.getsockname()[1]))
            threading.Thread(target=_attend, args=(door, token), daemon=True).start()
    except OSError as error:
        return OpenDoors(error=_why(error))
    return OpenDoors((ports[0], ports[1]))


def _bound(family: int, address: str, ports: list[int]) -> socket.socket:
    """Return a socket of the address family `family`, bound to the first free one of the ports, or to any port if
    `ports` has none that is free.
    """
    door = socket.socket(family, socket.SOCK_STREAM)
    for port in (*ports, 0):
        try:
            door.bind((address, port))
            break
        except OSError as error:
            if not port or error.errno != errno.EADDRINUSE:
                raise
    return door


def _attend(door: socket.socket, token: str) -> None:
    """Accept connections to the listening socket `door` for ever, and serve each whose caller proves that it has
    `token`.
    """
    while True:
        caller, _ = door.accept()
        threading.Thread(target=_serve, args=(caller, token), daemon=True).start()


def _serve(caller: socket.socket, token: str) -> None:
    """Answer the caller's pings, then receive data and report the rate; the caller must prove that it has `token`.

    Errors of the connection are ignored, and end it.
    """
    with caller, contextlib.suppress(OSError, ValueError):  # strangers, and who hangs up
        heard = _meet(caller, token, is_caller=False)
        for _ in range(PINGS):
            if not heard.read(1):
                return
            caller.sendall(b".")
        buffer = bytearray(_PIECE)
        first = caller.recv_into(buffer)
        began = now = time.monotonic()
        size = 0
        while first + size < FLOOD_BYTES and now - began < FLOOD_S:
            took = caller.recv_into(buffer)
            if not took:
                return
            size += took
            now = time.monotonic()
        caller.sendall(f"{size / max(now - began, 1e-6)}\n".encode())
        while caller.recv_into(buffer) and time.monotonic() - now < _SILENT_S:
            continue  # closed with something unread, the answer might be lost


def call(own: str, token: str, address: str, ports: Sequence[int], *, flood: bool = True) -> Measured:
    """Connect to both ports of the other machine at `address`, from the address `own`, and return the round trip and
    the rate.

    Both machines prove that they have `token`. The rate is measured only with `flood`, at the first of `ports`. No
    error is raised: the first failure is returned as `error`, with its port.
    """
    master, other = ports
    found = Measured()
    for port in (other, master):
        try:
            with socket.create_connection((address, port), _CONNECT_S, (own, 0)) as line:
                heard = _meet(line, token, is_caller=True)
                found = Measured(_ping(line, heard), _flood(line) if flood and port == master else 0.0)
        except (OSError, ValueError) as error:
            return Measured(error=_why(error), port=port)
    return found


def _meet(line: socket.socket, token: str, *, is_caller: bool) -> BinaryIO:
    """Exchange proofs of the token with the machine at the other end of the connection, and return the stream to read
    from. Raise ValueError if its proof is wrong, and ConnectionError if it closes the connection before.

    With `is_caller` this machine has connected, and proves the token first.
    """
    line.settimeout(_SILENT_S)
    line.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    heard, mine = line.makefile("rb"), secrets.token_bytes(_NONCE_BYTES)
    line.sendall(mine)
    theirs = heard.read(_NONCE_BYTES)
    both = mine + theirs if is_caller else theirs + mine
    by_listener, by_caller = (hmac.digest(bytes.fromhex(token), who + both, "sha256") for who in (b"ear", b"mouth"))
    if is_caller:
        line.sendall(by_caller)
    said = heard.read(_PROOF_BYTES)
    if len(said) < _PROOF_BYTES:
        raise ConnectionError("it hangs up before it proves the token")
    if not hmac.compare_digest(said, by_listener if is_caller else by_caller):
        raise ValueError("another program answers there")
    if not is_caller:
        line.sendall(by_listener)
    return heard


def _ping(line: socket.socket, heard: BinaryIO) -> float:
    """Send pings over the connection and return the median round trip in seconds; `heard` is the connection as a stream
    from which the answers are read. Raise ConnectionError if the other side closes it.
    """
    times = []
    for _ in range(PINGS):
        began = time.perf_counter()
        line.sendall(b".")
        if not heard.read(1):
            raise ConnectionError("it hung up")
        times.append(time.perf_counter() - began)
    return statistics.median(times)


def _flood(line: socket.socket) -> float:
    """Send data for about a second, and return the rate in bytes per second that the receiver has measured. Raise
    ConnectionError if it closes the connection, TimeoutError if it does not answer, and ValueError for an impossible
    rate.
    """
    line.setblocking(False)
    line.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # what is still unsent is not wanted
    piece, left, said = memoryview(bytes(_PIECE)), FLOOD_BYTES, b""
    until = time.monotonic() + FLOOD_S + _SILENT_S
    while not said.endswith(b"\n"):
        wait_s = max(0.0, until - time.monotonic())
        heard, free, _ = select.select([line], [line] if left else [], [], wait_s)
        if heard:
            said += (more := line.recv(_LONGEST))
            if not more or len(said) > _LONGEST:
                raise ConnectionError("it hung up")
        elif free:
            left -= line.send(piece[: min(left, _PIECE)])
        if not wait_s:
            raise TimeoutError("nothing arrives there")
    if not 0 <= (speed := float(said)) < _FASTEST:
        raise ValueError("it counts wrongly")
    return speed


_ANSWERS: Mapping[str, Callable[..., Any]] = {"look": look, "open": open_doors, "call": call}

if __name__ == "__main__":
    main()
