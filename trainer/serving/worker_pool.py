"""Fork workers on request from a process that has torch imported and the model loaded.

```
◄ {"op": "load", "app", "args", "checkpoint"}       ► {"op": "loaded", "input", "output", "unfit", "example"}
                                                    ► {"op": "failed", "message", "damaged"}
◄ {"op": "fork", "threads", "number"} + a socket    the worker sends all further messages on that socket
◄ {"op": "become", ...} + a socket                  this process becomes the worker, if it cannot be forked
◄ {"op": "renew", "checkpoint"} + a socket          forks a worker pool that loads another checkpoint, and answers there
a worker: ◄ {"inputs": [...]}    ► {"answers": [{"json": bytes} | {"field", "why"} | {"error"}]}
```

A process can be forked with one thread and CUDA not initialised: a lock that another thread holds would stay locked in
the copy. Torch therefore computes with one thread here; a worker starts threads of its own.
"""

import gc
import os
import select
import signal
import socket
import sys
import traceback
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NoReturn

import msgspec
import torch
from torch import nn

from trainer.errors import CheckpointDamaged, TrainerError
from trainer.serving.frames import MessageSocket
from trainer.serving.service import Rejected, Service, find_service

_ENDS_NOT_US = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)  # Ctrl-C is for the server, which then lets go of us
Answer = dict[str, Any]


def serve_batches(server: MessageSocket, service: Service, model: Any, threads: int, number: int) -> None:
    """Report that this worker is ready, then answer batches over `server` until the server closes.

    Torch uses `threads` threads. The model is moved to the GPU of worker `number`, which several workers share if there
    are fewer GPUs than workers.
    """
    torch.set_num_threads(threads)
    model = on_device(model, number)
    server.send({"op": "ready", "pid": os.getpid()})
    with suppress(ConnectionError):
        while (message := server.receive()) is not None:
            server.send({"answers": answers(service, model, message["inputs"])})


def on_device(model: Any, number: int) -> Any:
    """Return the model on the GPU of worker `number`, or unchanged if there is no GPU or it is no nn.Module.

    More workers than GPUs share these in turn. Call it after the fork, which CUDA does not survive.
    """
    if not isinstance(model, nn.Module) or not torch.cuda.is_available():
        return model
    return model.to(f"cuda:{number % torch.cuda.device_count()}")


def answers(service: Service, model: Any, inputs: Sequence[Any]) -> list[Answer]:
    """Return one answer for each input, computed by the service with the model.

    If the batch fails, each input is computed alone, and the answer to one that fails again describes its error.
    """
    try:
        return _computed(service, model, inputs)
    except Exception as error:  # noqa: BLE001 - what the user's code does is anything
        if len(inputs) == 1:
            return [_refused(error)]
        return [one for alone in inputs for one in answers(service, model, [alone])]


def _computed(service: Service, model: Any, inputs: Sequence[Any]) -> list[Answer]:
    """Return the answers of the service's `predict` to the inputs, as JSON.

    Raises ValueError unless there is one for each input, and whatever `predict` raises.
    """
    with torch.inference_mode():
        found = service.predict(model, list(inputs))
    if len(found) != len(inputs):
        raise ValueError(f"predict: expected {len(inputs)} answers, one for each input, got {len(found)}")
    return [{"json": msgspec.json.encode(one)} for one in found]


def _refused(error: Exception) -> Answer:
    """Return the answer for an input that failed with this error.

    It has `field` and `why` if the service rejected the input; else only `error`, after the traceback is printed.
    """
    if isinstance(error, Rejected):
        return {"field": error.field, "why": error.why}
    traceback.print_exc(file=sys.stderr)
    return {"error": traceback.format_exception_only(error)[-1].strip()[:1000]}


class WorkerPool:
    """A process that loads a service and its checkpoint, and forks workers, which then answer batches of inputs.

    It does each when the server sends a command for it over a socket (`run`).
    """

    def __init__(self, server: MessageSocket) -> None:
        self._server = server
        self._service: Service | None = None
        self._model: Any = None
        self._children: set[int] = set()
        self._child_exited, self._wakeup = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        signal.signal(signal.SIGCHLD, lambda *_: None)  # only a signal with a handler writes to the wakeup descriptor
        signal.set_wakeup_fd(self._wakeup, warn_on_full_buffer=False)

    def run(self) -> NoReturn:
        """Execute the server's commands until it closes its end; the workers end with this process."""
        poll = select.poll()
        poll.register(self._server, select.POLLIN)
        poll.register(self._child_exited, select.POLLIN)
        with suppress(ConnectionError):
            while True:
                ready = [fd for fd, _ in poll.poll()]
                if self._child_exited in ready:
                    self._reap()
                if self._server.fileno() in ready:
                    message = self._server.receive()
                    if message is None:
                        break
                    self._do(message)
        for pid in self._children:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        sys.stdout.flush()
        os._exit(0)

    def _do(self, message: dict[str, Any]) -> None:
        """Execute one command of the server, named by `message["op"]`.

        It is load (a service and its checkpoint), fork (a worker), become (a worker itself, which does not return) or
        renew (fork another pool, which loads another checkpoint).
        """
        match message["op"]:
            case "load":
                self._load(lambda: find_service(message["app"], message["args"]), Path(message["checkpoint"]))
            case "fork":
                self._fork(message)
            case "become":
                end = self._server.receive_socket()
                self._server.close()
                self._work(end, message)
            case "renew":
                self._renew(message)

    def _load(self, find: Any, checkpoint: Path) -> None:
        """Load the service that `find()` returns with its checkpoint, compute its example, and report to the server.

        The message has the service's description, or the error.
        """
        try:
            service = self._service = find()
            self._model = service.load(checkpoint)
            if isinstance(self._model, nn.Module):
                self._model.eval()
            if service.example is not None:  # what torch prepares at the first computation, workers then have
                (answer,) = answers(service, self._model, [service.example])
                if "json" not in answer:
                    raise TrainerError(f"the example cannot be answered: {answer}")
        except (Exception, SystemExit) as error:  # noqa: BLE001 - the user's code can raise anything
            if not isinstance(error, TrainerError):
                traceback.print_exc(file=sys.stderr)
            message_text = (
                str(error) if isinstance(error, TrainerError) else "".join(traceback.format_exception_only(error))
            )
            damaged = isinstance(error, CheckpointDamaged)
            self._server.send({"op": "failed", "message": message_text.strip(), "damaged": damaged})
            return
        gc.collect()
        gc.freeze()  # the collector of a worker then leaves these pages alone, and they stay shared
        described = {"input": service.input, "output": service.output, "unfit": _unfit(), "example": service.example}
        self._server.send({"op": "loaded", **described})

    def _fork(self, message: dict[str, Any]) -> None:
        """Fork a worker that serves the socket which came with the message.

        The message has its number of threads (`threads`) and its own number (`number`).
        """
        end = self._server.receive_socket()
        sys.stdout.flush()
        sys.stderr.flush()
        pid = os.fork()
        if pid == 0:
            self._close_parents_files()
            self._work(end, message)
        end.close()
        self._children.add(pid)

    def _work(self, end: socket.socket, message: dict[str, Any]) -> NoReturn:
        """Be a worker from now on: answer batches on the socket `end` until the server closes it, then exit.

        It runs in a fork of the pool's process, or in that process itself. The exit code is 1 after an error,
        else 0. The message has the worker's number of threads (`threads`) and its own number (`number`).
        """
        code = 1
        try:
            assert self._service is not None, "the server asks for workers of what was loaded"  # noqa: S101 - the server's protocol
            serve_batches(MessageSocket(end), self._service, self._model, message["threads"], message["number"])
            code = 0
        except BaseException:  # noqa: BLE001 - whatever it is, it ends here and not in the worker pool's own code
            traceback.print_exc(file=sys.stderr)
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)

    def _renew(self, message: dict[str, Any]) -> None:
        """Fork a worker pool that loads the checkpoint named in the message; this pool continues.

        The new pool takes commands over the socket that came with the message.
        """
        end = self._server.receive_socket()
        pid = os.fork()
        if pid:
            end.close()
            return
        self._close_parents_files()
        service, self._model = self._service, None
        young = WorkerPool(MessageSocket(end))
        young._load(lambda: service, Path(message["checkpoint"]))
        young.run()

    def _close_parents_files(self) -> None:
        """Close in a forked process all descriptors that belong to its parent, and reset signal handlers."""
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        self._server.close()
        self._children.clear()
        os.close(self._child_exited)
        os.close(self._wakeup)

    def _reap(self) -> None:
        """Collect workers that have exited, without waiting; their sockets close, by which the server notices."""
        with suppress(BlockingIOError):
            while os.read(self._child_exited, 512):
                continue
        with suppress(ChildProcessError):
            while (pid := os.waitpid(-1, os.WNOHANG)[0]) != 0:
                self._children.discard(pid)


def _unfit() -> str:
    """Return why this process cannot be forked, or "" if it can be: a single thread, and no CUDA so far."""
    threads = len(os.listdir("/proc/self/task"))
    if threads != 1:
        return f"{threads} threads where one was expected"
    return "CUDA is initialised" if torch.cuda.is_initialized() else ""


def serve_server(fd: int) -> NoReturn:
    """Run a worker pool, which executes the commands that its server sends over the socket `fd`.

    The process exits once the server closes its end.
    """
    for number in _ENDS_NOT_US:
        signal.signal(number, signal.SIG_IGN)
    os.set_inheritable(fd, False)
    torch.set_num_threads(1)
    WorkerPool(MessageSocket(socket.socket(fileno=fd))).run()
