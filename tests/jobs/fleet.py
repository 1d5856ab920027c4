"""Ranks as any launcher starts them, forked from one process that has imported torch, so that a test may start many."""

import contextlib
import json
import multiprocessing
import os
import runpy
import select
import signal
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path

from launcher.node.ranks.ports import HeldPort
from trainer.wire import Wire

BOUND_S = 200.0
FORKS = multiprocessing.get_context("forkserver")
FORKS.set_forkserver_preload(["torch", "torch._dynamo", "torch.distributed.checkpoint", "torchvision"])
# A module to preload in a run: the rank gives itself the signal once it has told of a step, as with `Strike`.
STRIKE = """
import os, signal
from trainer.wire import Wire

tell = Wire.report_step


def report_step(wire, step, *more, **metrics):
    tell(wire, step, *more, **metrics)
    if (os.environ["LAUNCH_GENERATION"], int(os.environ["RANK"]), step) == ("1", {rank}, {step}):
        os.kill(os.getpid(), signal.SIGKILL)


Wire.report_step = report_step
"""


@dataclass(frozen=True)
class Strike:
    """A signal that a rank gives itself right after it has told of a step: nobody has to be quick enough to hit it."""

    rank: int
    step: int
    number: int = signal.SIGKILL

    def prepare(self):
        tell = Wire.report_step

        def report_step(wire, step, *more, **metrics):
            tell(wire, step, *more, **metrics)
            if step == self.step:
                os.kill(os.getpid(), self.number)

        Wire.report_step = report_step


def become_rank(script, args, env, folder, log, strike):
    """In a forked child, run the script as `python script` would."""
    with open(log, "ab") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    os.environ.update(env)
    os.chdir(folder)
    if strike is not None and int(env["RANK"]) == strike.rank:
        strike.prepare()
    sys.argv[:] = [script, *args]
    runpy.run_path(script, run_name="__main__")


@dataclass
class Fleet:
    """One start of all ranks of a script, with an agent's end of the progress wire."""

    script: Path
    folder: Path
    world: int = 2
    strike: Strike | None = None
    env: dict = field(default_factory=dict)

    def __post_init__(self):
        self.folder.mkdir(parents=True, exist_ok=True)
        self.log = self.folder / "ranks.log"
        self.log.write_bytes(b"")
        self.reports = [[] for _ in range(self.world)]
        self.ranks = []
        self.wires = []
        self.port = HeldPort("127.0.0.1")

    def __enter__(self):
        for rank in range(self.world):
            path = self.folder / f"progress-{rank}"
            path.unlink(missing_ok=True)
            os.mkfifo(path)
            self.wires.append(os.open(path, os.O_RDWR | os.O_NONBLOCK))
        return self

    def __exit__(self, *_):
        for process in self.ranks:
            process.kill()
            process.join()
        for wire in self.wires:
            os.close(wire)
        self.port.release()

    def start(self, *args):
        for rank in range(self.world):
            env = {
                "RANK": str(rank),
                "LOCAL_RANK": str(rank),
                "WORLD_SIZE": str(self.world),
                "LOCAL_WORLD_SIZE": str(self.world),
                "MASTER_ADDR": "127.0.0.1",
                "MASTER_PORT": str(self.port.number),
                "GLOO_SOCKET_IFNAME": "lo",
                "OMP_NUM_THREADS": "1",
                "LAUNCH_PROGRESS": str(self.folder / f"progress-{rank}"),
                **self.env,
            }
            words = [str(arg) for arg in args]
            said = (str(self.script), words, env, self.folder, self.log, self.strike)
            process = FORKS.Process(target=become_rank, args=said)
            process.start()
            self.ranks.append(process)
        return self

    def step(self, rank):
        return max((report["step"] for report in self.reports[rank] if "step" in report), default=0)

    def wait(self):
        """Listen until all ranks have ended."""
        deadline = time.monotonic() + BOUND_S
        alive = True
        while alive:
            assert time.monotonic() < deadline, f"ranks took over {BOUND_S} s:\n{self.log.read_text()}"
            alive = any(process.is_alive() for process in self.ranks)
            self._listen()

    def codes(self):
        self.wait()
        return [process.exitcode for process in self.ranks]

    def last(self, word, rank=0):
        return next((report[word] for report in reversed(self.reports[rank]) if word in report), None)

    def _listen(self):
        select.select(self.wires, [], [], 0.02)
        for wire, reports in zip(self.wires, self.reports, strict=True):
            with contextlib.suppress(BlockingIOError):
                reports.extend(json.loads(line) for line in os.read(wire, 1 << 16).splitlines())
