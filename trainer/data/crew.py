"""Who fetches: worker processes, or this process itself. And how they are asked in turn."""

from collections import deque
from collections.abc import Callable, Generator, Iterable
from dataclasses import dataclass
from itertools import cycle
from typing import Any, Protocol, TypeVar

import torch

from trainer.data.pinning import in_thread, on_this_device, pinned
from trainer.data.seeds import Apart
from trainer.data.workers import Work, Workers
from trainer.errors import BadSettings

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Fetching:
    """How to fetch. Nothing of it changes what comes."""

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
        """How many tasks wait at each worker."""
        return self.prefetch if self.workers else 0

    @property
    def pins(self) -> bool:
        return self.pin_memory and torch.cuda.is_available()

    def pin(self, items: Generator[T, None, None]) -> Generator[T, None, None]:
        """The items in page-locked memory, if wished; copied there by a thread, if workers do the rest."""
        if not self.pins:
            return items
        if not self.workers:
            return (pinned(item) for item in items)
        return in_thread(items, on_this_device(pinned), self.prefetch)


class Crew(Protocol):
    """Who fetches."""

    size: int

    def ask(self, worker: int, task: Any) -> None: ...
    def take(self, worker: int) -> Any:
        """The answer to the oldest task that this worker was asked for."""

    def forget(self) -> None:
        """Nobody will take what has been asked for so far."""

    def end(self) -> None: ...


def in_turn(crew: Crew, tasks: Iterable[T], ahead: int) -> Generator[tuple[T, Any], None, None]:
    """Each task with its answer, in order; workers take turns, each with `ahead` tasks waiting for it."""
    crew.forget()
    waiting: deque[tuple[int, T]] = deque()
    for worker, task in zip(cycle(range(crew.size)), tasks, strict=False):
        crew.ask(worker, task)
        waiting.append((worker, task))
        if len(waiting) > ahead * crew.size:
            first, asked = waiting.popleft()
            yield asked, crew.take(first)
    for worker, task in waiting:
        yield task, crew.take(worker)


class Here:
    """No workers: this process fetches, and its own generators stay as they are."""

    size = 1

    def __init__(self, work: Work) -> None:
        self._work = work
        self._draws = getattr(work, "draws", True)
        self._asked: deque[Any] = deque()

    def ask(self, worker: int, task: Any) -> None:  # noqa: ARG002 - there is one only
        self._asked.append(task)

    def take(self, worker: int) -> Any:  # noqa: ARG002 - there is one only
        if not self._draws:
            return self._work(self._asked.popleft())
        with Apart():
            return self._work(self._asked.popleft())

    def forget(self) -> None:
        self._asked.clear()

    def end(self) -> None:
        self.forget()


def hire(open_work: Callable[[int], Work], fetching: Fetching, dataset: Any, *, most: int | None = None) -> Crew:
    """As many workers as wished, but `most` of them."""
    if not fetching.workers:
        return Here(open_work(0))
    return Workers(open_work, min(fetching.workers, most or fetching.workers), dataset)
