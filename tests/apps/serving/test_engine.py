"""Which worker takes the place of which, with workers that are sockets of the test."""

import asyncio
import os
import socket
import sys

import pytest

from launcher.apps.serving.engine import Engine, ServingOptions
from launcher.apps.serving.processes import Loaded, ServingWorker, WorkerPool
from launcher.apps.serving.what_is_served import Served
from tests.waits import BOUND_S
from trainer.serving.frames import frame

WORKERS = 8


class SocketPool:
    """A pool whose workers are sockets. `early` is a worker that ends while the last one starts."""

    def __init__(self, early=None):
        self.ended = asyncio.Event()
        self.started = asyncio.Queue()
        self._workers = {}
        self._early = early

    async def worker(self, op, threads, number, on_end):
        ours, theirs = socket.socketpair()
        worker = ServingWorker(ours, on_end)
        theirs.sendall(frame({"op": "ready", "pid": os.getpid()}))
        await worker.ready
        worker.batches = 1  # or its place would stay empty for a while
        self._workers[number] = worker, theirs
        if len(self._workers) == WORKERS and self._early is not None:
            early, self._early = self._early, None
            await self.end(early)
        self.started.put_nowait(number)
        return worker

    async def end(self, number):
        worker, theirs = self._workers[number]
        theirs.close()
        await worker.gone.wait()

    def close(self):
        for _, theirs in self._workers.values():
            theirs.close()

    async def wait_until_ended(self):
        """It is no process."""


def serving(monkeypatch, tmp_path, act, **options):
    """Run `act(engine, pool)` with a server whose workers have started."""

    async def scene():
        pool = SocketPool(**options)

        async def started(served, checkpoint):
            return pool, Loaded({}, {}, "")

        monkeypatch.setattr(WorkerPool, "started", started)
        served = Served("mine-abcd", "app", (), sys.executable, str(tmp_path), {}, tmp_path, best=False)
        engine = Engine(served, ServingOptions(workers=WORKERS), print)
        await engine.start()
        try:
            async with asyncio.timeout(BOUND_S):
                await act(engine, pool)
        finally:
            await engine.close()

    asyncio.run(scene())


def test_a_worker_that_ends_is_replaced_by_one_of_its_number(monkeypatch, tmp_path):
    """The number is that of its GPU, on which no other worker may be."""

    async def each_in_turn(engine, pool):
        assert sorted([await pool.started.get() for _ in range(WORKERS)]) == [*range(WORKERS)]
        for number in range(WORKERS):
            await pool.end(number)
            assert await pool.started.get() == number

    serving(monkeypatch, tmp_path, each_in_turn)


def test_a_worker_that_ends_while_others_start_is_replaced(monkeypatch, tmp_path):
    async def one_more(engine, pool):
        numbers = [await pool.started.get() for _ in range(WORKERS + 1)]
        assert (sorted(numbers[:-1]), numbers[-1]) == ([*range(WORKERS)], 2)

    serving(monkeypatch, tmp_path, one_more, early=2)


def test_a_pool_that_has_ended_leaves_no_socket_open():
    async def scene():
        ours, theirs = socket.socketpair()
        pool = WorkerPool(ours)
        theirs.sendall(frame({"op": "loaded", "input": {}, "output": {}, "unfit": ""}))
        theirs.close()
        await pool.ended.wait()
        before = os.listdir("/proc/self/fd")
        with pytest.raises(OSError, match="Bad file descriptor") as told:
            await pool.renewed("checkpoint")
        assert os.listdir("/proc/self/fd") == before, f"{told} keeps the frame, and with it the socket"
        pool.close()

    asyncio.run(scene())
