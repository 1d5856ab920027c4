"""Fetch data in worker processes or in this one, with tasks handed out in turn."""

from collections import deque
from collections.abc import Callable, Generator, Iterable
from dataclasses import dataclass
from itertools import cycle
from typing import Any, Protocol, TypeVar

import torch

from trainer.data.pinning import in_thread, on_this_device, pinned
from trainer.data.seeds import IsolatedDraws
from trainer.data.workers import Work, Workers
from trainer.errors import BadSettings

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Fetching:
    """The settings of fetching: worker processes, tasks to `prefetch` per worker, and whether tensors are pinned.

    None of them changes the data; without workers this process fetches.
    """

    workers: int = 0
    prefetch: int = 2
    pin_memory: bool = False

    def __post_init__(self) -> None:
        if self.workers < 0 or self.prefetch < 1:
            raise BadSettings(
                f"data: expected 0 or more workers and a prefetch of 1 or more, got {self.workers} and {self.prefetch}"
            )

    @property
    def ahead(self) -> int:
        """The number of tasks to keep waiting at each worker; 0 without workers."""
        return self.prefetch if self.workers else 0

    @property
    def pins(self) -> bool:
        """Whether tensors are copied into page-locked memory: the settings ask for it, and there is a GPU."""
        return self.pin_memory and torch.cuda.is_available()

    def pin(self, items: Generator[T, None, None]) -> Generator[T, None, None]:
        """Yield the items or, if `pins`, copies in page-locked memory; with workers a thread copies some ahead."""
        if not self.pins:
            return items
        if not self.workers:
            return (pinned(item) for item in items)
        return in_thread(items, on_this_device(pinned), self.prefetch)


class Fetchers(Protocol):
    """The interface of worker processes that fetch data, or of this process in their place.

    `size` is the number of workers; this process (InProcess) counts as one. `ask` gives worker number `worker` a task,
    and `end` ends the workers.
    """

    size: int

    def ask(self, worker: int, task: Any) -> None:
        """Queue a task for a worker without waiting; `take` returns the answer. The worker answers in order."""

    def take(self, worker: int) -> Any:
        """Return the answer to the oldest task of this worker whose answer was not taken yet; wait for it."""

    def forget(self) -> None:
        """Drop the answers to all tasks given so far, also those still to come, so that `take` never returns them."""

    def end(self) -> None:
        """End the worker processes."""


def in_turn(fetchers: Fetchers, tasks: Iterable[T], ahead: int) -> Generator[tuple[T, Any], None, None]:
    """Yield each task with its answer, in order; workers take turns.

    Each worker has up to `ahead` tasks waiting. Tasks that were given to them before are dropped.
    """
    fetchers.forget()
    waiting: deque[tuple[int, T]] = deque()
    for worker, task in zip(cycle(range(fetchers.size)), tasks, strict=False):
        fetchers.ask(worker, task)
        waiting.append((worker, task))
        if len(waiting) > ahead * fetchers.size:
            first, asked = waiting.popleft()
            yield asked, fetchers.take(first)
    for worker, task in waiting:
        yield task, fetchers.take(worker)


class InProcess:
    """Does the tasks in this process instead of in workers, and leaves the process's random generators as they were."""

    size = 1  # how many workers it stands for

    def __init__(self, work: Work) -> None:
        self._work = work
        self._draws = getattr(work, "draws", True)
        self._asked: deque[Any] = deque()

    def ask(self, worker: int, task: Any) -> None:  # noqa: ARG002 - there is one only
        """Add a task; it is done when its answer is taken."""
        self._asked.append(task)

    def take(self, worker: int) -> Any:  # noqa: ARG002 - there is one only
        """Do the oldest task now and return its answer; `worker` has no meaning here."""
        if not self._draws:
            return self._work(self._asked.popleft())
        with IsolatedDraws():
            return self._work(self._asked.popleft())

    def forget(self) -> None:
        """Drop all tasks given so far."""
        self._asked.clear()

    def end(self) -> None:
        """Drop all tasks; there is no process to end."""
        self.forget()


def start_fetchers(
    open_work: Callable[[int], Work], fetching: Fetching, dataset: Any, *, most: int | None = None
) -> Fetchers:
    """Start as many worker processes as `fetching` asks for, at most `most` (None: no limit), and return them.

    If it asks for none, the result does the tasks in this process. `open_work(number)` is called in each worker and
    returns the function that does its tasks. `dataset` is the data set that the tasks read.
    """
    if not fetching.workers:
        return InProcess(open_work(0))
    return Workers(open_work, min(fetching.workers, most or fetching.workers), dataset)
