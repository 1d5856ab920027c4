"""The power goes while checkpoints are saved, kept and pruned: an ext4 that forgets what was not flushed."""

import fcntl
import mmap
import os
import random
import signal
import struct
import subprocess
import time

import pytest
from checkpoint_lab import invalid, left_over, mounted, save

from tests.lab.requirements import need
from tests.sizes import SCALE
from trainer.checkpoint_files import catalog, commit
from trainer.checkpoint_files.catalog import Entry
from trainer.checkpoint_files.durable import make_folder
from trainer.checkpoint_files.layout import folder_name
from trainer.checkpoint_files.retention import expired

CUTS = 10 * SCALE
EXT4_IOC_SHUTDOWN = 0x8004587D
NO_LOG_FLUSH = struct.pack("I", 2)
KEEP, BEST_EVERY = 3, 4


class Acknowledged:
    """The last step and best step that were reported as safe, in memory that outlives the saving process."""

    def __init__(self) -> None:
        self._memory = mmap.mmap(-1, mmap.PAGESIZE)

    def tell(self, step: int, best: int) -> None:
        struct.pack_into("QQ", self._memory, 0, step, best)

    def heard(self) -> tuple[int, int]:
        return struct.unpack_from("QQ", self._memory, 0)


class Writer:
    """A process that saves step after step; with the acknowledgement of its `stop_after`-th save it holds still."""

    def __init__(self, folder, acknowledged: Acknowledged, stop_after: int) -> None:
        self._acknowledged = acknowledged
        self._pid = os.fork()
        if self._pid == 0:
            try:
                write_checkpoints(folder, acknowledged, stop_after)
            finally:
                os._exit(0)

    def wait_for(self, step: int) -> None:
        while self._acknowledged.heard()[0] < step:
            assert os.waitid(os.P_PID, self._pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None, "the writer has ended"
            time.sleep(0.0002)

    def end(self) -> None:
        os.kill(self._pid, signal.SIGKILL)
        os.waitpid(self._pid, 0)


def write_checkpoints(folder, acknowledged: Acknowledged, stop_after: int) -> None:
    mine = commit.take_over(folder)
    good = set(catalog.steps(folder))
    step, best = max({0} | good), acknowledged.heard()[1]  # one that was not acknowledged may be there all the same
    for number in range(stop_after):
        step += 1
        save(folder, step, mine, size=20_000)
        acknowledged.tell(step, best)
        if number + 1 == stop_after:
            signal.pause()
        good.add(step)
        if step % BEST_EVERY == 0:
            commit.publish_best(Entry("step", step, folder / folder_name(step)), mine)
            best = step
            acknowledged.tell(step, best)
        commit.remove(folder / folder_name(old) for old in expired(catalog.steps(folder), good, KEEP))


def cut(folder) -> None:
    fd = os.open(folder, os.O_RDONLY)
    try:
        fcntl.ioctl(fd, EXT4_IOC_SHUTDOWN, NO_LOG_FLUSH)
    finally:
        os.close(fd)


@pytest.fixture
def disk(memory):
    """An image of a disk with ext4 on it; gives what mounts it."""
    need("mkfs.ext4")
    image = memory / "disk"
    with open(image, "wb") as file:
        file.truncate(64 << 20)
    subprocess.run(["mkfs.ext4", "-q", "-F", str(image)], check=True)
    yield lambda: mounted(str(image), memory / "mount", "-o", "loop")
    left = subprocess.run(["losetup", "-j", str(image)], capture_output=True, text=True, check=True).stdout
    for line in left.splitlines():
        subprocess.run(["losetup", "-d", line.partition(":")[0]], check=True)
    assert not left, f"loop devices are left: {left}"


@pytest.mark.timeout(120 + 5 * CUTS)
def test_nothing_acknowledged_is_lost(disk, seed):
    draw = random.Random(seed)
    acknowledged = Acknowledged()
    cuts = commits = 0
    with disk() as root:
        make_folder(root / "run" / "checkpoints")
    while cuts < CUTS:
        # Half of them right after an acknowledgement, when nothing that comes later can have flushed it along.
        held = cuts % 2 == 1
        saves = draw.randrange(1, 10)
        with disk() as root:
            before = max([0, *catalog.steps(root / "run" / "checkpoints")])
            writer = Writer(root / "run" / "checkpoints", acknowledged, saves if held else 10**6)
            try:
                writer.wait_for(before + saves)
                time.sleep(0 if held else draw.random() * 0.01)
                cut(root)
                cuts += 1
            finally:
                writer.end()
        with disk() as root:
            step, best = acknowledged.heard()
            commits += step - before
            lost = problems(root / "run" / "checkpoints", step, best)
            assert not lost, f"cut {cuts}: {lost}"
    print(f"{cuts} cuts, {commits} commits")
    assert cuts == CUTS and commits >= cuts


def test_a_copy_of_all_mounts_made_meanwhile_holds_no_disk(disk):
    """What each node of the lab makes at its start, beside this test, would keep a disk that is cut."""
    copying = ["unshare", "--mount", "--propagation", "private", "sh", "-c", "echo copied; exec sleep 100"]
    here = os.getpid()
    in_all_mounts = ["nsenter", f"--mount=/proc/{os.getppid()}/ns/mnt", f"--wd=/proc/{here}/cwd", *copying]
    with disk() as root:
        other = subprocess.Popen(in_all_mounts, stdout=subprocess.PIPE)
        with other.stdout as says:
            copied = says.readline()
        cut(root)
    try:
        assert copied == b"copied\n"
        with disk() as root:
            make_folder(root / "again")
    finally:
        other.kill()
        other.wait()


def problems(folder, step: int, best: int) -> list[str]:
    found = invalid(folder)
    steps = catalog.steps(folder)
    bests = [entry.step for entry in catalog.entries(folder) if entry.kind == "best"]
    if step not in steps:
        found.append(f"step {step} was acknowledged, there are {steps}")
    if max([0, *bests]) < best:
        found.append(f"best {best} was acknowledged, there are {bests}")
    commit.take_over(folder)
    return found + [f"{name} is left" for name in left_over(folder)]
