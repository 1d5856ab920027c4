"""Runs a function on N gloo ranks, each a process of its own, and brings back what each returned."""

import faulthandler
import gc
import multiprocessing
import os
import pickle
import signal
import traceback
from collections.abc import Callable, Mapping
from typing import Any

# Here, once, and not in every rank: what training imports takes seconds, a fork takes none.
import torch
import torch._dynamo
import torch.distributed.checkpoint
import torch.distributed.fsdp
import torch.distributed.optim

from launcher.node.ranks.ports import HeldPort

_LIMIT_S = 200.0


def world_environment(rank: int, size: int, port: int, local_size: int | None = None) -> dict[str, str]:
    local = local_size or size
    return {
        "RANK": str(rank),
        "WORLD_SIZE": str(size),
        "LOCAL_RANK": str(rank % local),
        "LOCAL_WORLD_SIZE": str(local),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "GLOO_SOCKET_IFNAME": "lo",
        "OMP_NUM_THREADS": "1",
    }


def _entry(environ: Mapping[str, str], pipe: Any, stays: bool, work: Callable[..., Any], args: tuple[Any, ...]) -> None:
    gc.freeze()  # what the tests before this one left behind may wait, at its end, for threads that a fork has not
    os.environ.update(environ)
    torch.set_num_threads(1)
    faulthandler.register(signal.SIGUSR2, file=2)
    for number in (signal.SIGTERM, signal.SIGUSR1):  # as in a rank that was not forked from a test
        signal.signal(number, signal.SIG_DFL)
    try:
        answer = ("returned", work(*args))
    except SystemExit as error:
        answer = ("exited", error.code)
    except BaseException:
        answer = ("raised", traceback.format_exc())
    pipe.send_bytes(pickle.dumps(answer))
    if stays and answer[0] == "returned":
        pipe.poll(None)  # until all have: who leaves early takes away the store that others may still ask
    os._exit(0)  # teardown of process groups is not what these tests are about


class Ranks:
    """Ranks that run. `results()` waits for all and gives what each returned; a rank that raised fails the test."""

    def __init__(
        self,
        work: Callable[..., Any],
        size: int,
        *args: Any,
        env: Mapping[str, str] | None = None,
        local_size: int | None = None,
        stay: bool = False,
    ) -> None:
        """`stay`: a rank that has returned does not leave before `end`."""
        # By fork: torch is imported already. Pytest's own process never makes a process group.
        context = multiprocessing.get_context("fork")
        self._port = HeldPort("127.0.0.1")  # what is free now may be another test's a moment later
        self._pipes = []
        self.processes = []
        for rank in range(size):
            ours, theirs = context.Pipe()
            environ = {**world_environment(rank, size, self._port.number, local_size), **(env or {})}
            process = context.Process(target=_entry, args=(environ, theirs, stay, work, args))
            process.start()
            theirs.close()
            self._pipes.append(ours)
            self.processes.append(process)

    def kill(self, rank: int | None = None, sig: int = signal.SIGKILL) -> None:
        """Kill one rank, or all at once, so that no rank notices the death of another before its own."""
        struck = [each.pid for number, each in enumerate(self.processes) if rank in (None, number)]
        held = [signal.SIGSTOP] if sig == signal.SIGKILL and rank is None else []
        for number in [*held, sig]:
            for pid in filter(None, struck):
                os.kill(pid, number)

    def outcomes(self, limit_s: float = _LIMIT_S) -> list[tuple[str, Any]]:
        """("returned", value), ("exited", code), ("raised", traceback) or ("killed", exit code), by rank."""
        try:
            return [self._outcome(number, limit_s) for number in range(len(self.processes))]
        finally:
            self.end()

    def _outcome(self, number: int, limit_s: float) -> tuple[str, Any]:
        pipe, process = self._pipes[number], self.processes[number]
        if not pipe.poll(limit_s):
            self.kill(sig=signal.SIGUSR2)  # each writes its stacks, which pytest shows: it may be another that is stuck
            process.join(1.0)
            raise TimeoutError(f"rank {number} has not ended within {limit_s} s")
        try:
            return pickle.loads(pipe.recv_bytes())
        except EOFError:
            process.join(limit_s)
            return ("killed", process.exitcode)

    def results(self, limit_s: float = _LIMIT_S) -> list[Any]:
        outcomes = self.outcomes(limit_s)
        for number, (kind, what) in enumerate(outcomes):
            assert kind == "returned", f"rank {number} {kind}:\n{what}"
        return [what for _, what in outcomes]

    def end(self) -> None:
        for process in self.processes:
            if process.is_alive():
                process.kill()
            process.join()
            process.close()
        for pipe in self._pipes:
            pipe.close()
        self.processes = []
        self._port.release()


def spawn_ranks(work: Callable[..., Any], size: int, *args: Any, **options: Any) -> list[Any]:
    """Return what `work(*args)` returned on each of `size` ranks, with a rank's environment in each."""
    return Ranks(work, size, *args, stay=True, **options).results()
