"""Which subnets of this machine belong to which lab, so that several can be up at once and a dead owner's is cleared.

One JSON file a lab in FOLDER, which itself is the lock; the last lab to go takes the folder with it.
"""

import fcntl
import os
import select
import shutil
import signal
import subprocess
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import msgspec

from launcher.run.identity import alive, boot_id, process_id
from launcher.run.records import ProcessId

FOLDER = Path("/run/launch-labs")
TAG = "LAUNCH_LAB"  # in the environment of every process that a lab starts outside its nodes
SUBNETS = range(1, 250)
# What a lab has in its folder while it is up, and what it leaves there for whoever wants to know what happened.
LIVING = (
    *("bin", "dev", "disk", "disks", "etc", "mariadb", "sge", "spool", "state"),
    *("munge.*", "*.sock", "*.sock.lock", "*.pid"),
)
LEFT = ("log", "own-etc", "cgroup.conf", "gres.conf", "slurm.conf", "slurmdbd.conf")


class Claim(msgspec.Struct, frozen=True):
    """One lab's place on this machine. Without an owner it stays up until it is taken down by hand."""

    subnet: int
    folder: str
    owner: ProcessId | None
    boot_id: str

    @property
    def bridge(self) -> str:
        return f"lab{self.subnet}"

    def cable(self, node: int) -> str:
        """The bridge's end of a node's cable."""
        return f"lab{self.subnet}-{node}"

    def card(self, node: int) -> str:
        """The hardware address of a node, the same after every boot: neighbours remember it for minutes."""
        return f"02:00:00:00:{self.subnet:02x}:{node:02x}"

    def address(self, last: int) -> str:
        return f"10.77.{self.subnet}.{last}"

    @property
    def abandoned(self) -> bool:
        return self.boot_id != boot_id() or (self.owner is not None and alive(self.owner) is not True)


def claim(folder: Path, *, stays: bool = False) -> Claim:
    """The first free subnet for the lab in this folder; what dead owners left is cleared before."""
    with locked():
        taken = set()
        for other in claims():
            if other.abandoned:
                clear(other)
            elif other.folder == str(folder):
                raise RuntimeError(f"{folder}: a lab is up here already")
            else:
                taken.add(other.subnet)
        routes = subprocess.run(["ip", "-4", "route"], check=True, capture_output=True, text=True).stdout
        subnet = next(each for each in SUBNETS if each not in taken and f"10.77.{each}." not in routes)
        owner = None if stays else process_id(os.getpid())
        made = Claim(subnet=subnet, folder=str(folder), owner=owner, boot_id=boot_id())
        half = FOLDER / f"{subnet}.half"
        half.write_bytes(msgspec.json.encode(made))
        half.rename(FOLDER / f"{subnet}.json")
        return made


def release(held: Claim) -> None:
    """End every process of a lab, and free its subnet."""
    with locked():
        clear(held)


def take_down(folder: Path | None) -> list[str]:
    """End the labs that stay up without an owner (of this folder, or all), and what dead owners left."""
    with locked():
        ending = [each for each in claims() if each.abandoned or each.owner is None]
        ending = [each for each in ending if folder is None or each.folder == str(folder)]
        for each in ending:
            clear(each)
            remove(Path(each.folder), LEFT)
            with suppress(OSError):
                Path(each.folder).rmdir()  # only an empty one goes
        return [each.folder for each in ending]


def claims() -> list[Claim]:
    return [msgspec.json.decode(path.read_bytes(), type=Claim) for path in sorted(FOLDER.glob("*.json"))]


def clear(gone: Claim) -> None:
    """End what this lab started, take its links away, and forget it."""
    if gone.boot_id == boot_id():
        end_tagged(gone.folder)
        links = {gone.bridge} | {name for name in os.listdir("/sys/class/net") if name.startswith(f"{gone.bridge}-")}
        for name in links:
            subprocess.run(["ip", "link", "delete", name], check=False, capture_output=True)
        for mount in mounts(gone.folder):
            subprocess.run(["umount", mount], check=False, capture_output=True)
    (FOLDER / f"{gone.subnet}.json").unlink(missing_ok=True)
    remove(Path(gone.folder), LIVING)


def mounts(folder: str) -> list[str]:
    """Return what is mounted below a folder, the last first."""
    places = [line.split()[4] for line in Path("/proc/self/mountinfo").read_text().splitlines()]
    return [place for place in reversed(places) if place.startswith(f"{folder}/")]


def remove(folder: Path, patterns: Iterable[str]) -> None:
    for path in [found for pattern in patterns for found in folder.glob(pattern)]:
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)  # two patterns may have found it


def end_tagged(folder: str) -> None:
    """Kill every process that carries this lab's tag, until there is none.

    The first process of a node is one of them, and the kernel ends a node's other processes with it.
    """
    while found := tagged(folder):
        for pid in found:
            kill(pid)


def kill(pid: int, timeout_s: float = 150.0) -> None:
    """Kill a process, and come back once it and, where it was a node's first one, all of its node are dead."""
    try:
        handle = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    try:
        signal.pidfd_send_signal(handle, signal.SIGKILL)
        if not select.select([handle], [], [], timeout_s)[0]:
            raise TimeoutError(f"process {pid} outlived SIGKILL by {timeout_s} s")
    except ProcessLookupError:
        return
    finally:
        os.close(handle)


def tagged(folder: str) -> list[int]:
    mark = f"{TAG}={folder}".encode()
    return [pid for pid in pids() if pid != os.getpid() and mark in read(pid, "environ").split(b"\0")]


def pids() -> list[int]:
    return [int(name) for name in os.listdir("/proc") if name.isdigit()]


def read(pid: int, name: str) -> bytes:
    """Return what /proc has about a process, or nothing if it has exited."""
    try:
        return Path(f"/proc/{pid}/{name}").read_bytes()
    except OSError:
        return b""


@contextmanager
def locked() -> Iterator[None]:
    """Alone with the claims. Whoever finds the folder empty at the end removes it, so the lock is checked once held."""
    while True:
        FOLDER.mkdir(mode=0o700, exist_ok=True)
        try:
            folder = os.open(FOLDER, os.O_RDONLY | os.O_DIRECTORY)
        except FileNotFoundError:
            continue
        try:
            fcntl.flock(folder, fcntl.LOCK_EX)
            if FOLDER.exists() and os.path.samestat(os.fstat(folder), FOLDER.stat()):
                yield
                with suppress(OSError):
                    FOLDER.rmdir()  # only an empty one goes
                return
        finally:
            os.close(folder)
