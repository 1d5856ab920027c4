"""Ranks of a training as launch runs them with recovery.mode hot, forked from the test; it replaces those that die."""

import contextlib
import importlib.util
import json
import multiprocessing
import os
import shutil
import signal
import sys
import time
import traceback
from itertools import chain
from pathlib import Path

import torch
from ranks import world_environment
from torch._dynamo.utils import counters

from launcher.node.ranks.ports import HeldPort
from trainer.checkpoint_files import catalog

SCRIPT = Path(__file__).parents[1] / "local" / "scripts" / "in_place.py"
_LIMIT_S = 200.0


def _entry(environ, log, words, launchs_ends):
    for fd in launchs_ends:  # so that a rank which nobody has a word for any more finds that out
        os.close(fd)
    os.environ.update(environ)
    out = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    for number in (1, 2):
        os.dup2(out, number)
    sys.stdout, sys.stderr = (open(number, "w", buffering=1, closefd=False) for number in (1, 2))
    for number in (signal.SIGTERM, signal.SIGUSR1):
        signal.signal(number, signal.SIG_DFL)
    torch.set_num_threads(1)
    counters.clear()  # other tests may have compiled something in the process that this one was forked from
    sys.path.insert(0, str(SCRIPT.parent))
    found = importlib.util.spec_from_file_location("in_place", SCRIPT)
    module = importlib.util.module_from_spec(found)
    found.loader.exec_module(module)
    code = 1
    try:
        code = module.main(words)
    except BaseException:
        traceback.print_exc()
    os._exit(code or 0)


def _control(path):
    """Open both FIFOs: for urgent messages, and for messages that can wait for the end of a step."""
    return _fifo(path), _fifo(Path(f"{path}.step-end"))


def _fifo(path):
    os.mkfifo(path)
    return os.open(path, os.O_RDWR | os.O_NONBLOCK)


def _state(pid):
    """Return the kernel's state of a process: T is stopped, X is gone."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return "X"


def _is_gone(process):
    return process.exitcode == -signal.SIGKILL or (process.exitcode is None and _state(process.pid) == "T")


class Launched:
    """`run()` until all have ended; a rank that dies is replaced, and the others are told.

    With `nodes` all ranks of its node die with it, or with one that stops, and a spare has their places: what they
    noted is lost, their snapshots in memory are not. Who only stopped goes on once the others are done (`ghosts`, with
    their exit codes). Nodes of `along` are lost at the same moment as the first one. For the first `shrinks` losses
    there is no spare: the other ranks are told to go on as fewer. With `grows_at` ranks of one more node are started
    at that step, and join once they wait. At the step `hold` all wait until each has said that they can be fewer,
    and something is saved.
    """

    def __init__(
        self,
        folder,
        size,
        *words,
        replaces=True,
        memory_every="",
        nodes=0,
        along=(),
        shrinks=0,
        grows_at=None,
        every="10 steps",
        hold=None,
        without=None,
        lease_s=0,
    ):
        self.folder, self.size, self.words, self.replaces = folder, size, list(words), replaces
        self._held = None if hold is None else folder / "hold"
        self.spares, self.each, self._shrinks, self._every = nodes > 0, size // (nodes or 1), shrinks, every
        self.nodes = [*range(nodes or 1)]  # that have ranks, by place
        self.ghosts, self._along = [], {*along}
        self._memory_every, self._without = memory_every, without  # a node without memory for notes
        self._lease_s = lease_s  # by which they wait longer for a word
        self.generation, self.replaced, self._controls, self._progress = 1, [], [], []
        self._steps, self.stayed_at = {}, {}  # the step at which each rank said so first
        self.stayed_until = {}  # that at which it said first that it does no more
        self.resizes = set()  # ranks that have said that they can be fewer, or more
        self.goes_back_at = {}  # the step at which each rank said first that they can be fewer, by what was saved
        self._grows_at, self._waiting = grows_at, None  # ranks that are to join, and have not said that they wait
        self._joining = set()  # ranks that were started anew, and have not said that they stay
        self._context = multiprocessing.get_context("fork")
        for node in self.nodes:
            self._notes(node * self.each).mkdir(parents=True)
        if self._held is not None:
            self._held.write_text(str(hold))
            self.words += ["--hold", str(self._held)]
        self._control_paths = [folder / f"control-{rank}" for rank in range(size)]
        self._progress_paths = [folder / f"progress-{rank}" for rank in range(size)]
        for rank in range(size):
            self._controls.append(_control(self._control_paths[rank]))
            self._progress.append(_fifo(self._progress_paths[rank]))
        self._ports = [HeldPort("127.0.0.1")]

    def _environment(self, rank, *, joins=False):
        missing = ("LAUNCH_CONTROL", "LAUNCH_NOTES_DIR") if self.nodes[rank // self.each] == self._without else ()
        return {name: value for name, value in self._all_words(rank, joins=joins).items() if name not in missing}

    def _all_words(self, rank, *, joins):
        return {
            **world_environment(rank, self.size, self._ports[-1].number, self.each),
            "GROUP_RANK": str(rank // self.each),
            "LAUNCH_RUN_DIR": str(self.folder),
            "LAUNCH_ATTEMPT": "1",
            "LAUNCH_GENERATION": str(self.generation),
            "LAUNCH_CHECKPOINT_DIR": str(self.folder / "checkpoints"),
            "LAUNCH_CHECKPOINT_EVERY": self._every,
            "LAUNCH_PROGRESS": str(self._progress_paths[rank]),
            "LAUNCH_CONTROL": str(self._control_paths[rank]),
            "LAUNCH_NOTES_DIR": str(self._notes(rank)),
            "LAUNCH_CHECKPOINT_MEMORY_DIR": str(self._memory(rank)) if self._memory_every else "",
            "LAUNCH_CHECKPOINT_MEMORY_EVERY": self._memory_every,
            **({"LAUNCH_JOINS": "1"} if joins else {}),
            "LAUNCH_LEASE_S": str(self._lease_s),
            **({"LAUNCH_NOTES_COPIED": "1"} if self.spares else {}),
        }

    def _notes(self, rank):
        """Return the folder of notes on the rank's node."""
        return self.folder / f"notes-{self.nodes[rank // self.each]}"

    def _memory(self, rank):
        """Return the memory of a node, which outlives it, as with `checkpoint.buddy`."""
        return self.folder / f"memory-{rank // self.each}"

    def log(self, rank, generation=None):
        return self.folder / f"g{generation or self.generation}-rank-{rank}.log"

    def said(self):
        return "".join(path.read_text() for path in sorted(self.folder.glob("g*-rank-*.log")))

    def _start(self, rank, **how):
        launchs_ends = [*chain(*self._controls), *self._progress]
        words = (self._environment(rank, **how), self.log(rank), self.words, launchs_ends)
        process = self._context.Process(target=_entry, args=words)
        process.start()
        return process

    def run(self, until=lambda: False):
        """Exit codes by rank. All are killed as soon as that has come true."""
        ranks = [self._start(rank) for rank in range(self.size)]
        deadline = time.monotonic() + _LIMIT_S
        try:
            while any(process.exitcode is None for process in ranks) and not until():
                assert time.monotonic() < deadline, self.said()
                ends = [one.sentinel for one in ranks if one.exitcode is None]
                multiprocessing.connection.wait([*ends, *self._progress], timeout=0.2)
                for rank in range(self.size):
                    self._hear(rank)
                if self._held is not None and self._can_all_be_fewer and catalog.steps(self.folder / "checkpoints"):
                    self._held.unlink()
                    self._held = None
                if self._grows_at is not None and max(self._steps.values(), default=0) >= self._grows_at:
                    self._grow(ranks)
                if self._waiting is not None and not self._waiting:
                    self._have_them_join()
                dead = [rank for rank, process in enumerate(ranks) if _is_gone(process)]
                if dead and self.spares:
                    dead = self._lose(ranks, {rank // self.each for rank in dead} | self._along)
                    self._along.clear()
                if dead and self._shrinks:
                    self._shrink(ranks, dead)
                elif dead and self.replaces:
                    self._replace(ranks, dead)
            codes = [process.exitcode for process in ranks]
            for process in self.ghosts:
                os.kill(process.pid, signal.SIGCONT)
                process.join(_LIMIT_S)
            return codes
        finally:
            for process in [*ranks, *self.ghosts]:
                process.kill()
                process.join()
            for fd in (*chain(*self._controls), *self._progress):
                os.close(fd)
            for port in self._ports:
                port.release()

    def _hear(self, rank):
        with contextlib.suppress(BlockingIOError):
            while data := os.read(self._progress[rank], 1 << 16):
                for word in map(json.loads, data.splitlines()):
                    self._steps[rank] = word.get("step", self._steps.get(rank, 0))
                    if "waits" in word and self._waiting is not None:
                        self._waiting.discard(rank)
                    if "can_continue" in word:
                        self._joining.discard(rank)
                    if word.get("can_continue") == 0:
                        self.stayed_until.setdefault(rank, self._steps[rank])
                    if word.get("can_continue"):
                        self.resizes = self.resizes | {rank} if word.get("resizes") else self.resizes - {rank}
                        self.stayed_at.setdefault(rank, self._steps[rank])
                    if word.get("goes_back"):
                        self.goes_back_at.setdefault(rank, self._steps[rank])

    def _lose(self, ranks, nodes):
        dead = [rank for rank in range(self.size) if rank // self.each in nodes]
        for rank in dead:
            if _state(ranks[rank].pid) == "T":
                self.ghosts.append(ranks[rank])
            else:
                ranks[rank].kill()
                ranks[rank].join()
        for node in nodes:
            shutil.rmtree(self._notes(node * self.each))
            self._notes(node * self.each).mkdir()
        return dead

    def _grow(self, ranks):
        assert self.resizes.issuperset(range(self.size))
        self._grows_at, new = None, range(self.size, self.size + self.each)
        self.size += self.each
        self.nodes.append(max(self.nodes) + 1)
        self._notes(new[0]).mkdir()
        self._ports.append(HeldPort("127.0.0.1"))
        self.generation += 1
        for rank in new:
            self._control_paths.append(self.folder / f"control-{rank}")
            self._progress_paths.append(self.folder / f"progress-{rank}")
            self._controls.append(_control(self._control_paths[rank]))
            self._progress.append(_fifo(self._progress_paths[rank]))
            ranks.append(self._start(rank, joins=True))
        self._waiting, self._joining = {*new}, {*new}

    def _have_them_join(self):
        self._waiting = None
        for rank in range(self.size):
            if rank not in self._joining:
                self._tell(rank, self.log(rank, self.generation - 1), at_step_end=True)
        (self.folder / "slow").unlink()

    def _shrink(self, ranks, dead):
        """The others have other numbers where nodes before theirs are gone."""
        before, self.generation, self._shrinks = self.generation, self.generation + 1, self._shrinks - 1
        deadline = time.monotonic() + _LIMIT_S
        while not self._can_all_be_fewer:  # who died in the first step was quicker than others that are yet to say so
            assert time.monotonic() < deadline, self.said()
            multiprocessing.connection.wait(self._progress, timeout=0.2)
            for rank in range(self.size):
                self._hear(rank)
        self.replaced.append(dead)
        kept = [rank for rank in range(self.size) if rank not in dead]
        for rank in dead:
            for fd in (*self._controls[rank], self._progress[rank]):
                os.close(fd)
        self.nodes = [self.nodes[rank // self.each] for rank in kept[:: self.each]]
        for by_rank in (ranks, self._controls, self._control_paths, self._progress, self._progress_paths):
            by_rank[:] = [by_rank[rank] for rank in kept]
        self.size = len(kept)
        self._ports.append(HeldPort("127.0.0.1"))
        for rank, was in enumerate(kept):
            self._tell(rank, self.log(was, before))

    @property
    def _can_all_be_fewer(self):
        return self.resizes.union(self.goes_back_at).issuperset(range(self.size))

    def _tell(self, rank, log_before, *, at_step_end=False):
        word = {"generation": self.generation, "environment": self._environment(rank)}
        word |= {"log": str(self.log(rank)), "log_before": str(log_before)}
        os.write(self._controls[rank][at_step_end], json.dumps(word).encode() + b"\n")

    def _replace(self, ranks, dead):
        """Replace ranks, also those that had yet to meet the others."""
        before, self.generation = self.generation, self.generation + 1
        for rank in self._joining.difference(dead):
            ranks[rank].kill()
            ranks[rank].join()
        dead = sorted(self._joining.union(dead))
        for rank in dead:
            self._hear(rank)
            for fd in self._controls[rank]:
                os.close(fd)  # what it was told is not for its successor
            self._control_paths[rank] = self.folder / f"control-{rank}-{self.generation}"
            self._controls[rank] = _control(self._control_paths[rank])
        self._joining = set(dead)
        self._ports.append(HeldPort("127.0.0.1"))
        self.replaced.append(dead)
        for rank in range(self.size):
            if rank not in dead:
                self._tell(rank, self.log(rank, before))
        for rank in dead:
            ranks[rank] = self._start(rank, joins=True)

    def numbers(self):
        """The loss, rate and norm of every step and what validations found, as they were written down last."""
        found = {}
        for line in map(json.loads, (self.folder / "metrics" / "metrics.jsonl").read_text().splitlines()):
            kept = {name: line[name] for name in ("loss", "lr", "norm", "val_loss") if name in line}
            if kept:
                found.setdefault(line["step"], {}).update(kept)
        return found

    def fingerprint(self):
        return self.said().rpartition("fingerprint sha256=")[2].split()[0]
