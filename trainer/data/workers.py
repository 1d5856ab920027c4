"""Worker processes that fetch data ahead, each answering in the order in which it was asked.

torch's loader is not used: its workers end with a SIGTERM to the group, its SIGCHLD handler raises anywhere in the
training, and a worker's own state (the position in its stream) cannot travel with its batches.
"""

import ctypes
import gc
import io
import os
import pickle
import queue
import reprlib
import signal
import threading
import traceback
from collections import deque
from collections.abc import Callable
from multiprocessing import connection, get_context, util
from multiprocessing.context import ForkProcess
from multiprocessing.reduction import ForkingPickler
from typing import Any, NamedTuple

import torch
import torch.multiprocessing  # teaches multiprocessing's connections to pass tensors through shared memory
from torch.utils.data._utils import worker as torch_worker

from trainer.data.seeds import seed_draws
from trainer.errors import TrainerError

Work = Callable[[Any], Any]

_PR_SET_PDEATHSIG = 1
_END_S = 2.0
# A rank acts on these, its workers do not: they must outlast it, or the last batches before a save never come.
_OF_THE_RANK = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)


class WorkerTraceback(Exception):
    """The traceback in a worker, as text: the cause of the exception that is raised again in the rank."""


class _Worker(NamedTuple):
    """A worker process, the pipes to and from it, and the tasks that it has not answered, oldest first.

    `reaping` is held while the process is waited for, as the wait fails if two threads do so.
    """

    process: ForkProcess
    tasks: "connection.Connection[Any, Any]"
    answers: "connection.Connection[Any, Any]"
    asked: deque[Any]  # the tasks without an answer, oldest first
    reaping: threading.Lock  # if two threads wait for one child, one of them gets an error

    def join(self, timeout: float | None = None) -> int | None:
        """Wait up to `timeout` seconds for the process to end; return its exit code, or None if it is still running."""
        with self.reaping:
            self.process.join(timeout)
            return self.process.exitcode


class Workers:
    """A fixed number of worker processes.

    Each calls `open_work(number)` once, with its own number from 0 on, and then the function that this returns for each
    of its tasks.
    """

    def __init__(self, open_work: Callable[[int], Work], size: int, dataset: Any) -> None:
        self.size = size
        self._workers: list[_Worker] = []
        self._forgotten = [0] * size
        # Made here once, the workers' sockets are in it, and go with it when this process ends.
        util.get_temp_dir()
        # At exit multiprocessing asks its children by SIGTERM and waits for them; ours must be gone by then.
        self._at_exit = util.Finalize(self, _end, args=(self._workers,), exitpriority=100)
        for number in range(size):
            self._workers.append(_start(open_work, number, size, dataset, self._workers))

    def ask(self, worker: int, task: Any) -> None:
        """Give worker number `worker` a task, to be done after its earlier ones.

        Raises TrainerError, which says how the worker ended, if it has.
        """
        member = self._workers[worker]
        member.asked.append(task)
        try:
            member.tasks.send(task)
        except OSError as error:
            raise self._lost(worker, error) from error

    def take(self, worker: int) -> Any:
        """Return the answer to the oldest task of this worker whose answer was not taken yet; wait for it.

        An error in the task is raised again here. Raises TrainerError if the worker has ended.
        """
        while self._forgotten[worker]:
            self._receive(worker)
            self._forgotten[worker] -= 1
        answer, error, text = self._receive(worker)
        if error is None:
            return answer
        raise error from WorkerTraceback(f"in data worker {worker}:\n{text}")

    def forget(self) -> None:
        """Make `take` skip the answers to all tasks given so far; the workers still do these tasks."""
        self._forgotten = [len(member.asked) for member in self._workers]

    def end(self) -> None:
        """Tell the processes to exit, kill those that have not within two seconds, and return once all have ended."""
        self._at_exit()

    def _receive(self, worker: int) -> Any:
        """Wait for the worker's next answer, which is to its oldest open request, and return it.

        Raises TrainerError, which says how the worker ended, if it has.
        """
        member = self._workers[worker]
        try:
            answer = member.answers.recv()
        except (EOFError, OSError) as error:
            raise self._lost(worker, error) from error
        member.asked.popleft()
        return answer

    def _lost(self, worker: int, error: Exception) -> Exception:
        """Return the error to raise for a worker whose pipe failed with `error`.

        If the worker has ended, all others are ended, too, and a TrainerError says how it ended and at which task. If
        it still runs, after a short wait, `error` is returned and no worker is ended.
        """
        member = self._workers[worker]
        code = member.join(_END_S)
        if code is None:
            return error  # it lives: this is about the rank, as when it has too many files open
        self.end()
        how = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"
        hint = "\nhint: out of memory? use fewer workers, or a smaller prefetch" if code == -signal.SIGKILL else ""
        at = reprlib.repr(member.asked[0])
        return TrainerError(f"data worker {worker} (pid {member.process.pid}) {how} at {at}{hint}")


def _start(open_work: Callable[[int], Work], number: int, size: int, dataset: Any, earlier: list[_Worker]) -> _Worker:
    """Fork and return worker number `number` of `size`.

    `open_work(number)` returns, in the worker, the function that does its tasks on `dataset`. `earlier` are the workers
    whose pipes the new one must not keep open.
    """
    # By fork, whatever Python's default is: the data set need not be picklable, and the rank is the parent.
    context = get_context("fork")
    tasks_there, tasks_here = context.Pipe(duplex=False)
    answers_here, answers_there = context.Pipe(duplex=False)
    ours = [tasks_here, answers_here, *(end for other in earlier for end in (other.tasks, other.answers))]
    # Between the fork and its own handlers a worker would act on the rank's signals as the rank does.
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, _OF_THE_RANK)
    try:
        settings = _WorkerSettings(
            number, size, dataset, os.getpid(), mask, threading.current_thread() is threading.main_thread()
        )
        process = context.Process(
            target=_serve, args=(settings, open_work, tasks_there, answers_there, ours), daemon=True
        )
        process.start()
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
    tasks_there.close()
    answers_there.close()
    return _Worker(process, tasks_here, answers_here, deque(), threading.Lock())


def _end(workers: list[_Worker]) -> None:
    """Tell the workers to exit, and kill those that are still busy after two seconds."""
    for worker in workers:
        try:
            worker.tasks.send(None)
        except OSError:
            continue  # it is gone already
    limit = _END_S
    for worker in workers:
        if worker.join(limit) is None:
            limit = 0.0  # all of them together have had the time
            worker.process.kill()
        worker.join()


class _WorkerSettings(NamedTuple):
    """The settings of a worker process that its parent passes on.

    It is worker `number` of `size`, reads `dataset`, and is a child of the rank with the pid `rank_pid`. `mask` are the
    signals that were blocked before the fork, and `of_main_thread` says whether the rank's main thread forked it.
    """

    number: int  # of the worker, from 0
    size: int  # how many workers there are
    dataset: Any
    rank_pid: int
    mask: set[int | signal.Signals]  # the signals blocked before the fork
    of_main_thread: bool


def _serve(
    settings: _WorkerSettings, open_work: Callable[[int], Work], tasks: Any, answers: Any, ours: list[Any]
) -> None:
    """Run in the worker process: do the tasks from the pipe `tasks` and send `answers`, until the rank closes the pipe.

    `open_work(number)` returns the function that does a task, and is called at the first one. An answer is (result,
    error or None, traceback): an error of a task is sent, and the next task is done. `ours` are the ends of pipes that
    belong to the rank, and are closed here.
    """
    _leave_signals_to_the_rank(settings)
    _end_with_the_rank(settings)
    for end in ours:
        end.close()
    gc.freeze()  # what the rank owns is not ours to collect, nor to copy page by page
    gc.enable()  # the rank may have it off, and look at steps of its own
    torch.set_num_threads(1)  # as torch's own workers; and OpenMP's threads do not survive a fork
    seed_draws(settings.number)
    # Where data sets look for their share of the work: get_worker_info().
    torch_worker._worker_info = torch_worker.WorkerInfo(  # noqa: SLF001 - torch offers no other way to set it
        id=settings.number, num_workers=settings.size, seed=settings.number, dataset=settings.dataset
    )
    waiting: queue.SimpleQueue[Any] = queue.SimpleQueue()
    threading.Thread(target=_listen, args=(tasks, waiting), daemon=True).start()
    work: Work | None = None
    while (task := waiting.get()) is not None:
        try:
            work = work or open_work(settings.number)
            answer: tuple[Any, Exception | None, str] = (work(task), None, "")
        except Exception as error:  # noqa: BLE001 - whatever a data set raises is raised again in the rank
            answer = (None, _portable(error), traceback.format_exc())
        try:
            _send(answers, answer)
        except BrokenPipeError:
            return
        del answer, task  # not kept while the next one is made


def _send(answers: Any, answer: tuple[Any, Exception | None, str]) -> None:
    """Send an answer (result, error, traceback); if it cannot be pickled, send the reason as an error instead."""
    try:
        answers.send_bytes(pickled(answer))
    except BrokenPipeError:
        raise
    except Exception as error:  # noqa: BLE001 - a batch that no pipe can carry: the rank gets to know why
        answers.send_bytes(pickled((None, _portable(error), traceback.format_exc())))


def _listen(tasks: Any, waiting: "queue.SimpleQueue[Any]") -> None:
    """Read tasks from the pipe as soon as they come and put them into `waiting`, with None at the end.

    The rank then never blocks on a busy worker. The process exits if the rank is gone.
    """
    try:
        while (task := tasks.recv()) is not None:
            waiting.put(task)
    except (EOFError, OSError):
        os._exit(1)  # the rank is gone; whatever is being fetched, nobody will take it
    waiting.put(None)


def _portable(error: Exception) -> Exception:
    """Return the exception itself if it can be pickled, else a TrainerError with its text."""
    try:
        pickle.loads(pickle.dumps(error))  # noqa: S301 # nosec B301 - our own bytes, of a moment ago
    except Exception:  # noqa: BLE001 - an exception's own code may do anything
        return TrainerError(f"{type(error).__qualname__}: {error}")
    return error


def _leave_signals_to_the_rank(settings: _WorkerSettings) -> None:
    """Have this worker do nothing on signals that the rank handles, such as SIGTERM.

    They are sent to the whole process group, of which the worker is a part. Then unblock them, by setting the rank's
    own signal mask, which is in `settings`.
    """
    signal.set_wakeup_fd(-1)  # the rank's own pipe
    for number in _OF_THE_RANK:
        # Not SIG_IGN: a program that a data set starts would inherit it.
        signal.signal(number, _do_nothing)
        signal.siginterrupt(number, False)
    signal.pthread_sigmask(signal.SIG_SETMASK, settings.mask)


def _do_nothing(_signal: int, _frame: Any) -> None: ...


def _end_with_the_rank(settings: _WorkerSettings) -> None:
    """Let the kernel kill this worker when the rank dies, and exit at once if the rank has died before this call.

    Linux ties that to the thread that forked, not to its process. If that was not the main thread, the kernel is not
    asked, and the worker ends when its pipe is closed.
    """
    if settings.of_main_thread:
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != settings.rank_pid:
        os._exit(1)


_SMALL_BYTES = 64 * 1024
_NUMBERS = {
    torch.float64, torch.float32, torch.float16, torch.bfloat16,
    torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.bool,
}  # fmt: skip


def pickled(item: Any) -> bytes:
    """Return the item as bytes for a connection's `send_bytes`, which `recv` reads.

    Small tensors are pickled by value, as shared memory takes 20 times as long for each of them.
    """
    buffer = io.BytesIO()
    _Packer(buffer).dump(item)
    return buffer.getvalue()


class _Packer(ForkingPickler):
    """A pickler that stores CPU tensors of up to 64 KiB by value, and others in shared memory, as torch does."""

    def reducer_override(self, item: Any) -> Any:
        """Return how pickle stores a small tensor by value; NotImplemented for anything else."""
        if type(item) is not torch.Tensor or not _fits(item):
            return NotImplemented
        content = item.contiguous().view(-1).view(torch.uint8).numpy().tobytes()
        return _unpickled, (content, item.dtype, tuple(item.shape))


def _fits(tensor: torch.Tensor) -> bool:
    """Return whether the tensor is a plain CPU tensor of at most 64 KiB, to be pickled by value."""
    return (
        tensor.dtype in _NUMBERS
        and tensor.layout is torch.strided
        and tensor.device.type == "cpu"
        and not tensor.requires_grad
        and 0 < tensor.numel() * tensor.element_size() <= _SMALL_BYTES
    )


def _unpickled(content: bytes, dtype: torch.dtype, shape: tuple[int, ...]) -> torch.Tensor:
    """Return a CPU tensor with these bytes (`content`), type and shape.

    Pickle calls it to rebuild a small tensor that `_Packer` stored by value.
    """
    return torch.frombuffer(bytearray(content), dtype=dtype).view(shape)
