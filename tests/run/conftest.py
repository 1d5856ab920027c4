"""Killing and tracing a writer at its system calls, and racing processes against each other."""

import multiprocessing
import os
import re
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.lab.requirements import need

# Everything that changes the disk, what opens, syncs and locks. A kill at any other call leaves what a kill at the next
# of these leaves.
CHANGING = (
    "openat,write,pwrite64,copy_file_range,ftruncate,fsync,rename,link,unlink,unlinkat,mkdir,rmdir,symlink,chmod,"
    "fchmod,flock,syncfs"
)
_BOUND_S = 150.0  # against hanging alone
_OPENS = "/the-window-opens"
_PROGRAM = """
import os, sys
from pathlib import Path
folder = Path(sys.argv[1])
{setup}
os.access("{opens}", os.F_OK)
{operation}
"""


@dataclass(frozen=True)
class Writer:
    """A Python program whose system calls count from where `operation` begins; it is given `folder`."""

    setup: str
    operation: str


class Strace:
    def __init__(self, scratch: Path) -> None:
        self._scratch = scratch
        self._runs = 0

    def calls(self, writer: Writer, folder: Path) -> list[str]:
        """Return the system calls of an operation, one line each, with paths for descriptors."""
        log = self._run(writer, folder, "-y", "-e", f"trace={CHANGING},access")[1]
        start = next(index for index, line in enumerate(log) if _OPENS in line)
        return log[start + 1 :]

    def kill_everywhere(
        self, writer: Writer, prepare: Callable[[Path], None], check: Callable[[Path], None]
    ) -> Counter[str]:
        """Kill the operation at each of its calls in turn, each time in a fresh folder, and check what is left."""
        fired: Counter[str] = Counter()
        before, made = self._count(writer, prepare)
        for call in made:
            when = before[call] + 1
            while self._kill(writer, prepare, check, call, when):
                fired[call] += 1
                when += 1
        return fired

    def _count(self, writer: Writer, prepare: Callable[[Path], None]) -> tuple[Counter[str], Counter[str]]:
        """Return how often each call is made before the operation begins, and how often in all."""
        code, log = self._run(writer, self._fresh(prepare), "-e", f"trace={CHANGING},access")
        assert code == 0, log
        start = next(index for index, line in enumerate(log) if _OPENS in line)
        before, after = (Counter(line.split("(")[0] for line in part) for part in (log[:start], log[start + 1 :]))
        return before, Counter({call: after[call] for call in CHANGING.split(",") if after[call]})

    def _kill(
        self, writer: Writer, prepare: Callable[[Path], None], check: Callable[[Path], None], call: str, when: int
    ) -> bool:
        folder = self._fresh(prepare)
        fault = ("-e", f"trace={call}", "-e", f"inject={call}:signal=SIGKILL:when={when}")
        code, log = self._run(writer, folder, *fault)
        assert code in (0, -9), f"{call} {when}: exit {code}: {log[-3:]}"
        try:
            check(folder)
        except Exception as error:
            raise AssertionError(f"killed at {call} {when}: {type(error).__name__}: {error}") from error
        shutil.rmtree(folder)
        return code == -9

    def _fresh(self, prepare: Callable[[Path], None]) -> Path:
        self._runs += 1
        folder = self._scratch / f"run-{self._runs}"
        folder.mkdir()
        prepare(folder)
        return folder

    def _run(self, writer: Writer, folder: Path, *options: str) -> tuple[int, list[str]]:
        log = self._scratch / "strace.log"
        text = _PROGRAM.format(setup=writer.setup, operation=writer.operation, opens=_OPENS)
        # Not with --seccomp-bpf: strace 6.1 then injects no signals.
        command = ["strace", "-f", "-qq", "-o", str(log), *options, sys.executable, "-S", "-c", text, str(folder)]
        path = os.pathsep.join(filter(None, sys.path))
        env = {**os.environ, "PYTHONPATH": path, "PYTHONDONTWRITEBYTECODE": "1", "PYTHONHASHSEED": "0"}
        done = subprocess.run(command, env=env, capture_output=True, text=True, check=False, timeout=_BOUND_S)
        assert done.returncode in (0, -9), done.stderr
        return done.returncode, [line.split(" ", 1)[1].lstrip() for line in log.read_text().splitlines()]


@pytest.fixture
def strace(tmp_path_factory) -> Strace:
    need("strace")
    return Strace(tmp_path_factory.mktemp("strace"))


def out_of_order(calls: list[str]) -> list[str]:
    """Renames and links that a power cut could turn into half a file, or take back."""
    problems = []
    dirty: set[str] = set()
    names: dict[str, str] = {}  # folder -> the new name in it that is not durable yet
    for call in calls:
        if written := re.match(r"(?:write|pwrite64)\(\d+<([^>]*)>", call):
            dirty.add(written[1])
        elif copied := re.match(r"copy_file_range\(\d+<[^>]*>, (?:NULL|\[.*?\]), \d+<([^>]*)>", call):
            dirty.add(copied[1])
        elif synced := re.match(r"fsync\(\d+<([^>]*)>\) += 0", call):
            dirty.discard(synced[1])
            names.pop(synced[1], None)
        elif re.match(r"syncfs\(\d+<[^>]*>\) += 0", call):
            dirty.clear()
            names.clear()
        elif moved := re.match(r'(?:rename|link)\("([^"]*)", "([^"]*)"\) += 0', call):
            taken_along = [one for one in dirty if f"{one}/".startswith(f"{moved[1]}/")]
            problems += [f"{one}: renamed before it was synced" for one in taken_along]
            names[os.path.dirname(moved[2])] = moved[2]
    return problems + [f"{name}: its folder was not synced" for name in names.values()]


@pytest.fixture
def order() -> Callable[[list[str]], list[str]]:
    return out_of_order


@pytest.fixture
def writer() -> type[Writer]:
    return Writer


def _racer(barrier: Any, results: Any, operation: Callable[[int], Any], rounds: int) -> None:
    for number in range(rounds):
        barrier.wait(_BOUND_S)
        try:
            results.put((number, operation(number)))
        except Exception as error:
            results.put((number, type(error).__name__))


@pytest.fixture
def race() -> Iterator[Callable[..., list[list[Any]]]]:
    """Have processes do the same thing at once, round by round; gives what each got, or its exception's name."""
    fork = multiprocessing.get_context("fork")

    def run(operation: Callable[[int], Any], *, racers: int = 4, rounds: int = 25) -> list[list[Any]]:
        barrier, results = fork.Barrier(racers), fork.Queue()
        children = [fork.Process(target=_racer, args=(barrier, results, operation, rounds)) for _ in range(racers)]
        for child in children:
            child.start()
        got: list[list[Any]] = [[] for _ in range(rounds)]
        for _ in range(racers * rounds):
            number, result = results.get(timeout=_BOUND_S)
            got[number].append(result)
        for child in children:
            child.join(_BOUND_S)
        return got

    yield run
    for child in multiprocessing.active_children():
        child.kill()
        child.join()
