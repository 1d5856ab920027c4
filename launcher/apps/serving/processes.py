"""The server's side of the processes that compute: a worker pool, which loads the model and forks workers, and the
workers.
"""

import asyncio
import os
import signal
import socket
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import msgspec

from launcher.apps.serving.what_is_served import Served
from launcher.errors import LaunchError
from trainer.serving.frames import HEAD_BYTES, FrameBroken, frame, length_of, message_in

Answer = Mapping[str, Any]  # {"json"}, {"field", "why"} or {"error"}
_LET_GO_S = 5.0
_ONE_THREAD = {"OPENBLAS_NUM_THREADS": "1"}  # else numpy starts one per core as it is imported: nobody could fork then
_NO_WORD = (
    "the process that loads the model ended without a word",
    "hint: what it says stands above; the run's Python needs this version of launch-anywhere with the extra `train`",
)


class WorkerLost(Exception):
    """Raised if a worker ended while it computed a batch."""


class NotBegun(WorkerLost):
    """Raised if a worker ended before it read its batch, so that another worker can compute it."""


class WorkerPoolLost(Exception):
    """Raised if the process that forks workers has ended. Its workers still run."""


class NotLoaded(LaunchError):
    """Raised if a checkpoint, or the service itself, cannot be loaded. If it is `damaged`, another checkpoint may
    work.
    """

    def __init__(self, *lines: str, damaged: bool = False) -> None:
        super().__init__(*lines)
        self.damaged = damaged


@dataclass(frozen=True, slots=True)
class Loaded:
    """The message that a pool sends once it has loaded the model: the schemas of input and output, an example of an
    input (None: the service has none), and why it is `unfit` to be forked ("": it can be).
    """

    input: Mapping[str, Any]
    output: Mapping[str, Any]
    unfit: str  # why it cannot be forked, or ""
    example: Any = None  # of an input; None: the service, or an older trainer, has none


class Link:
    """The server's end of a connection to a process. Each message is passed to `received`. `ended` is called once, when
    the process closes the connection or sends data that is no message, but not upon `close`. `unread` is set if the
    process exited without reading everything that was sent to it.
    """

    def __init__(self, end: socket.socket, received: Callable[[Any], None], ended: Callable[[], None]) -> None:
        self.unread = False
        self._end, self._received, self._ended = end, received, ended
        end.setblocking(False)
        self._task = asyncio.create_task(self._listen())

    async def send(self, message: Any, hand: socket.socket | None = None) -> None:
        """Send a message to the process and, if given, the socket `hand` with it; raise OSError if the process has
        closed the connection.
        """
        data = frame(message)
        if hand is not None:
            sent = socket.send_fds(self._end, [data], [hand.fileno()])
            data = data[sent:]
        await asyncio.get_running_loop().sock_sendall(self._end, data)

    def close(self) -> None:
        """Stop receiving, and close the connection; `ended` is not called."""
        self._task.cancel()  # and then the socket is closed: not before nobody waits for it

    async def _listen(self) -> None:
        """Receive until the process closes the connection, then call `ended`."""
        try:
            with suppress(FrameBroken):
                await self._receive()
        except ConnectionError:
            self.unread = True
        finally:
            self._end.close()
        self._ended()

    async def _receive(self) -> None:
        """Receive messages and pass each to the callback `received`, until the process closes the connection.

        Raise FrameBroken for data that is no message, and ConnectionError if the connection breaks.
        """
        loop = asyncio.get_running_loop()
        data = bytearray()
        while more := await loop.sock_recv(self._end, 1 << 18):
            data += more
            while len(data) >= HEAD_BYTES and len(data) >= (end := HEAD_BYTES + length_of(bytes(data[:HEAD_BYTES]))):
                message = message_in(bytes(data[HEAD_BYTES:end]))
                del data[:end]
                self._received(message)


class ServingWorker:
    """The server's view of a process that computes one batch at a time. `gone` is set once it has ended, and `retired`
    if it gets no more batches.
    """

    def __init__(self, end: socket.socket, on_end: "Callable[[ServingWorker], None]") -> None:
        self._on_end = on_end
        self._pidfd: int | None = None
        self.pid = 0
        self.ready: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._answer: asyncio.Future[list[Answer]] | None = None
        self.batches = 0
        self.step: int | None = None  # of the checkpoint that it computes with
        self.retired = False  # it gets no more batches
        self.gone = asyncio.Event()
        self._link = Link(end, self._received, self._ended)

    @property
    def busy(self) -> bool:
        """Whether the worker is computing a batch."""
        return self._answer is not None

    async def compute(self, payloads: Sequence[bytes], most_s: float) -> list[Answer]:
        """Have the worker compute a batch, and return an answer to each input, in their order. Raise WorkerLost if the
        worker ends, or takes longer than `most_s` seconds, upon which it is killed.
        """
        self._answer = asyncio.get_running_loop().create_future()
        try:
            async with asyncio.timeout(most_s):
                await self._send({"inputs": [msgspec.Raw(one) for one in payloads]})
                found = await self._answer
        except TimeoutError:
            self.kill()
            raise WorkerLost(f"took longer than {most_s:g} s") from None
        finally:
            self._answer = None
        self.batches += 1
        return found

    async def _send(self, message: Any) -> None:
        """Send the worker a message; raise NotBegun if the worker has exited."""
        try:
            await self._link.send(message)
        except OSError as error:
            raise NotBegun(f"it had left: {error}") from error

    def kill(self) -> None:
        """Kill the worker's process."""
        with suppress(ProcessLookupError):
            if self._pidfd is not None:
                signal.pidfd_send_signal(self._pidfd, signal.SIGKILL)

    def close(self) -> None:
        """Close the connection to the worker, which makes it exit."""
        self._link.close()
        self._ended()

    def _received(self, message: Any) -> None:
        """Handle a message of the worker: the answers to its batch, or that it is ready."""
        if "answers" in message:
            if self._answer is not None and not self._answer.done():
                self._answer.set_result(message["answers"])
        elif not self.ready.done():
            self.pid = message["pid"]
            with suppress(ProcessLookupError):
                self._pidfd = os.pidfd_open(self.pid)
            self.ready.set_result(None)

    def _ended(self) -> None:
        """Record that the worker has ended, and call back.

        Whoever waits for its batch gets NotBegun if the worker had not read it, so that another one may compute it, and
        else WorkerLost.
        """
        if self.gone.is_set():
            return
        self.gone.set()
        if self._pidfd is not None:
            os.close(self._pidfd)
            self._pidfd = None
        lost = (NotBegun if self._link.unread else WorkerLost)("the process that computed it has ended")
        for waiting in (self._answer, self.ready):
            if waiting is not None and not waiting.done():
                waiting.set_exception(lost)
        self._on_end(self)


class WorkerPool:
    """The server's handle of a process that loads one checkpoint and forks workers on request."""

    def __init__(self, end: socket.socket) -> None:
        self.ended = asyncio.Event()
        self._loaded: asyncio.Future[Loaded] = asyncio.get_running_loop().create_future()
        self._link = Link(end, self._received, self._on_end)
        self._process: asyncio.subprocess.Process | None = None

    @classmethod
    async def started(cls, served: Served, checkpoint: str) -> "tuple[WorkerPool, Loaded]":
        """Start a pool in a new process, which imports the service and loads the checkpoint at the path `checkpoint`;
        return (the pool, what it loaded).

        Raise NotLoaded if that fails.
        """
        ours, theirs = socket.socketpair()
        words = ("-m", "trainer.serving", str(theirs.fileno()))
        try:
            process = await asyncio.create_subprocess_exec(
                served.python, *words, cwd=served.cwd, env={**served.env, **_ONE_THREAD}, pass_fds=[theirs.fileno()],
                stdin=asyncio.subprocess.DEVNULL, stdout=2, start_new_session=True,
            )  # fmt: skip
        except OSError as error:
            ours.close()
            raise NotLoaded(f"{served.python}: {error.strerror}") from error
        finally:
            theirs.close()
        found = cls(ours)
        found._process = process
        order = {"op": "load", "app": served.app, "args": served.args, "checkpoint": checkpoint}
        return found, await found._load(order)

    async def renewed(self, checkpoint: str) -> "tuple[WorkerPool, Loaded]":
        """Have this pool fork another one, which loads the checkpoint at the path `checkpoint` without importing
        anything again.

        Return (the new pool, what it loaded). Raise NotLoaded if the checkpoint cannot be loaded, and OSError if this
        pool has ended.
        """
        found = WorkerPool(await self._order({"op": "renew", "checkpoint": checkpoint}))
        return found, await found._load(None)

    async def worker(
        self, op: str, threads: int, number: int, on_end: Callable[[ServingWorker], None]
    ) -> ServingWorker:
        """Start worker `number`, which may use `threads` threads, and return it. With `op` "fork" it is a fork of the
        pool; with "become" the pool's own process, which cannot be forked safely, becomes the worker.

        `on_end` is called when the worker ends. Raise WorkerPoolLost if the pool has ended, and WorkerLost if the
        worker ends at once.
        """
        try:
            end = await self._order({"op": op, "threads": threads, "number": number})
        except OSError as error:
            raise WorkerPoolLost from error
        worker = ServingWorker(end, on_end)
        await worker.ready
        return worker

    async def _order(self, message: Mapping[str, Any]) -> socket.socket:
        """Send the pool a message that starts a process, and return our end of a new connection to that process; raise
        OSError if the pool has ended.
        """
        ours, theirs = socket.socketpair()
        try:
            with theirs:
                await self._link.send(message, theirs)
        except BaseException:
            ours.close()
            raise
        return ours

    def close(self) -> None:
        """Close the connection to the pool, which ends it and its remaining workers."""
        self._link.close()
        self._on_end()

    async def wait_until_ended(self) -> None:
        """Wait until the pool's process has exited after its connection was closed; kill it if that takes more than a
        few seconds.

        Return at once for a pool that was forked, since it is no child of this process.
        """
        if self._process is None:
            return
        try:
            async with asyncio.timeout(_LET_GO_S):
                await self._process.wait()
        except TimeoutError:
            self._process.kill()
            await self._process.wait()

    async def _load(self, order: Mapping[str, Any] | None) -> Loaded:
        """Send the pool `order`, the message that makes it load a checkpoint (None: it was forked to load one), and
        return what it reports.

        Raise NotLoaded if it cannot load; the pool has ended then.
        """
        try:
            if order is not None:
                with suppress(OSError):  # that it has exited is noticed
                    await self._link.send(order)
            return await self._loaded
        except BaseException:
            self.close()
            await self.wait_until_ended()
            raise

    def _received(self, message: Any) -> None:
        """Handle the pool's message that it has loaded the model, or why it could not."""
        match message["op"]:
            case "loaded":
                found = Loaded(message["input"], message["output"], message["unfit"], message.get("example"))
                self._loaded.set_result(found)
            case "failed":
                self._loaded.set_exception(NotLoaded(*message["message"].splitlines(), damaged=message["damaged"]))

    def _on_end(self) -> None:
        """Record that the pool has ended; a load that waits for it fails."""
        self.ended.set()
        if not self._loaded.done():
            self._loaded.set_exception(NotLoaded(*_NO_WORD))
