"""Checkpoints small enough to be made by the thousand, processes struck at a system call, and what must hold after."""

import contextlib
import ctypes
import mmap
import os
import random
import re
import shutil
import signal
import subprocess
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from tests.lab.requirements import need, skip_or_fail
from trainer.checkpoint_files import catalog, commit
from trainer.checkpoint_files.durable import sync_folder, write_new
from trainer.checkpoint_files.fence import FencingToken
from trainer.checkpoint_files.layout import data_name, folder_name, is_draft, is_trash, new_nonce
from trainer.checkpoint_files.manifest import Chunk, FileEntry, Manifest, TensorEntry, TreeEntry
from trainer.errors import EXIT_FENCED, CheckpointDamaged, Fenced, TrainerError

RANKS = 2
_TREE = b'{"epoch":3}'
# Calls that name a file or use a descriptor; what only moves memory about leaves nothing to look at.
CALLS = "%file,%desc"
_CLONE_NEWNS = 0x00020000
_SET_PTRACER, _ANYBODY = 0x59616D61, ctypes.c_ulong(-1)
DAMAGED, SURPRISE, OS_ERROR = 50, 51, 100


def payload(step: int, rank: int, size: int = 3000) -> bytes:
    return random.Random(step * 1000 + rank).randbytes(size)


def manifest_of(step: int, files: list[FileEntry], attempt: int = 0) -> Manifest:
    """Return a manifest of one tensor whose parts are the ranks' files, with a document at the end of the first."""
    part = files[0].size - len(_TREE)
    chunks = [Chunk(number, 0, (number * part,), (part,)) for number in range(len(files))]
    return Manifest(
        step=step,
        world_size=len(files),
        nonce=new_nonce(),
        files=tuple(files),
        tensors={"model.weight": TensorEntry("uint8", (part * len(files),), tuple(chunks))},
        trees={"loop": TreeEntry(0, part, len(_TREE))},
        attempt=attempt,
        info={"loss": 0.25},
    )


def write_rank(draft: Path, step: int, rank: int, size: int = 3000) -> FileEntry:
    name = data_name(rank)
    written = write_new(draft / name, [payload(step, rank, size), _TREE])
    sync_folder(draft)
    return FileEntry(name, written.size, written.digest)


def save(folder: Path, step: int, mine: FencingToken, run_dir: Path | None = None, size: int = 3000) -> Path:
    """Save once, as the Checkpointer does."""
    draft = commit.begin(folder, step, mine, run_dir)
    try:
        files = [write_rank(draft, step, rank, size) for rank in range(RANKS)]
    except OSError:
        with contextlib.suppress(OSError):
            commit.remove([draft])
        raise
    return commit.publish(draft, manifest_of(step, files, mine.attempt), mine, run_dir)


def whole(entry: catalog.Entry) -> bool:
    """Verified, and what is in it is what was saved as this step."""
    manifest = catalog.verify(entry)
    return all(
        (entry.path / file.name).read_bytes() == payload(entry.step, rank, file.size - len(_TREE)) + _TREE
        for rank, file in enumerate(manifest.files)
    )


def invalid(folder: Path) -> list[str]:
    """Return folders that look like checkpoints and are none."""
    problems = []
    for entry in catalog.entries(folder):
        try:
            problems += [] if whole(entry) else [f"{entry.path.name} is another one's"]
        except CheckpointDamaged as error:
            problems.append(str(error))
    return problems


def left_over(folder: Path) -> list[str]:
    return [name for name in os.listdir(folder) if is_draft(name) or is_trash(name)]


def check_sound(folder: Path, acknowledged: set[int], known: set[int]) -> None:
    """Check what holds after any fault, and that the next start can work."""
    assert invalid(folder) == []
    steps = catalog.steps(folder)
    assert acknowledged <= set(steps) <= known, f"{sorted(acknowledged)} were acknowledged, there are {steps}"
    mine = commit.take_over(folder)
    assert left_over(folder) == []
    assert catalog.steps(folder) == steps
    following = max(known) + 1
    save(folder, following, mine)
    assert catalog.steps(folder) == [*steps, following]
    assert invalid(folder) == []


@dataclass(frozen=True)
class End:
    """The end of a process that was struck: negative for a signal; 100 + errno for an OSError."""

    code: int
    log: list[str]


class Struck:
    """A forked process that runs `work` under strace, with these faults, once `release` is called."""

    def __init__(self, work: Callable[[], object], *options: str) -> None:
        before = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR1])
        try:
            self.pid = os.fork()
            if self.pid == 0:
                _run_and_exit(work)
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
        self._ended = False
        # Attached to a process that has everything imported: a hundred times faster than a new interpreter under it.
        command = ["strace", "-p", str(self.pid), *options]
        self._strace = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
        self.log: list[str] = []

    def __enter__(self) -> Self:
        if not self.until("attached"):
            self.__exit__()
            raise AssertionError(f"strace cannot attach: {self.log}")
        os.kill(self.pid, signal.SIGUSR1)
        return self

    def __exit__(self, *_: object) -> None:
        if not self._ended:
            os.kill(self.pid, signal.SIGKILL)
            os.waitpid(self.pid, 0)
        self._strace.kill()
        self._strace.communicate()

    def until(self, words: str) -> bool:
        """Read what strace says as far as this; False where it has ended before."""
        assert self._strace.stderr is not None
        for line in self._strace.stderr:
            self.log.append(line.rstrip("\n"))
            if words in line:
                return True
        return False

    def end(self) -> End:
        code = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
        self._ended = True
        self.until("no such words")
        return End(code, self.log)


def _run_and_exit(work: Callable[[], object]) -> None:
    code = SURPRISE
    try:
        ctypes.CDLL(None).prctl(_SET_PTRACER, _ANYBODY, 0, 0, 0)  # else only an ancestor may trace, where Yama is on
        signal.sigwait([signal.SIGUSR1])
        work()
        code = 0
    except Fenced:
        code = EXIT_FENCED
    except OSError as error:
        code = OS_ERROR + (error.errno or 0)
    except TrainerError:
        code = DAMAGED
    finally:
        os._exit(code)


def strike(work: Callable[[], object], *options: str) -> End:
    with Struck(work, *options) as process:
        return process.end()


def calls_of(work: Callable[[], object], *options: str) -> list[str]:
    """The lines of all its system calls."""
    end = strike(work, "-e", f"trace={CALLS}", *options)
    assert end.code == 0 and len(end.log) > 2, end
    return [line for line in end.log if re.match(r"(?!mmap)\w+\(", line)]


def unsynced(calls: list[str]) -> list[str]:
    """Return the calls that named something a power cut could undo, or wrote bytes that it could lose."""
    problems, dirty, names = [], set(), {}
    for call in calls:
        if written := re.match(r"write\(\d+<([^>]*)>", call):
            dirty.add(written[1])
        elif made := re.match(r'(?:openat\(AT_FDCWD[^,]*, |link\([^,]*, |mkdir\()"([^"]*)".* = \d', call):
            if not call.startswith("openat") or "O_CREAT" in call:
                names[made[1]] = os.path.dirname(made[1])
        elif synced := re.match(r"fsync\(\d+<([^>]*)>\) += 0", call):
            dirty.discard(synced[1])
            names = {name: folder for name, folder in names.items() if folder != synced[1]}
        elif moved := re.match(r'rename\("([^"]*)", "([^"]*)"\) += 0', call):
            inside = f"{moved[1]}/"
            problems += [f"{path} is not on disk" for path in dirty if f"{path}/".startswith(inside)]
            problems += [f"the name of {name} is not on disk" for name in names if name.startswith(inside)]
            names = {name: folder for name, folder in names.items() if not f"{name}/".startswith(inside)}
            names[moved[2]] = os.path.dirname(moved[2])
    return problems + [f"the name of {name} is not on disk at the end" for name in names]


def points(calls: list[str]) -> list[tuple[str, int]]:
    """Return each call as (name, its number among calls of that name)."""
    seen: Counter[str] = Counter()
    found = []
    for line in calls:
        name = line.split("(")[0]
        seen[name] += 1
        found.append((name, seen[name]))
    return found


@dataclass(frozen=True)
class Stage:
    """A folder as it is when an operation begins, and as often as wanted."""

    template: Path
    mine: FencingToken
    known: frozenset[int]  # steps that are there, all acknowledged

    def fresh(self, folder: Path) -> Path:
        shutil.rmtree(folder, ignore_errors=True)
        return Path(shutil.copytree(self.template, folder, symlinks=True))


def set_stage(template: Path, *steps: int, best: int | None = None) -> Stage:
    template.mkdir()
    mine = commit.take_over(template)
    for step in steps:
        save(template, step, mine)
    if best is not None:
        commit.publish_best(catalog.Entry("step", best, template / folder_name(best)), mine)
    return Stage(template, mine, frozenset(steps))


class SharedFlags:
    """Bytes that a process can set for the one that watches it, without a system call."""

    def __init__(self) -> None:
        self._memory = mmap.mmap(-1, mmap.PAGESIZE)

    def clear(self) -> None:
        self._memory[:] = bytes(len(self._memory))

    def mark(self, number: int) -> None:
        self._memory[number] = 1

    def found(self) -> set[int]:
        return {number for number, flag in enumerate(self._memory[:]) if flag}


@contextlib.contextmanager
def mounted(source: str, folder: Path, *options: str) -> Iterator[Path]:
    """Mount for the time of the block, seen by this process and its children alone; skip the test that may not."""
    need("mount")
    folder.mkdir(exist_ok=True)
    with _own_mounts():
        done = subprocess.run(["mount", *options, source, str(folder)], capture_output=True, text=True)
        if done.returncode != 0:
            skip_or_fail(f"nothing can be mounted here (root and loop devices are needed): {done.stderr.strip()}")
        try:
            yield folder
        finally:
            done = subprocess.run(["umount", str(folder)], capture_output=True, text=True)
            if done.returncode != 0:  # something still uses it: out of sight at least, and red
                subprocess.run(["umount", "--lazy", str(folder)], check=True)
            assert done.returncode == 0, done.stderr


@contextlib.contextmanager
def _own_mounts() -> Iterator[None]:
    """Run the block in a mount namespace of its own.

    Another process that takes a copy of all mounts (each node of the lab does) would keep ours in use after its end.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    cwd, before = os.open(".", os.O_RDONLY), os.open("/proc/thread-self/ns/mnt", os.O_RDONLY)
    try:
        if libc.unshare(_CLONE_NEWNS) != 0:
            skip_or_fail(f"no mount namespace to be had (root is needed): {os.strerror(ctypes.get_errno())}")
        try:
            yield
        finally:
            if libc.setns(before, _CLONE_NEWNS) != 0:
                raise OSError(ctypes.get_errno(), "setns: cannot go back to the mounts of all")
            os.fchdir(cwd)  # setns goes to the root
    finally:
        os.close(before)
        os.close(cwd)
