"""Copy batches into page-locked memory, from which a GPU copies while the CPU continues."""

import queue
import threading
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from typing import Any, TypeVar

import torch

T = TypeVar("T")
U = TypeVar("U")


def pinned(data: Any) -> Any:
    """Return nested data with its tensors, and objects with a `pin_memory` method, in page-locked memory.

    Mappings and sequences are made anew; values of other types are returned as they are.
    """
    if isinstance(data, torch.Tensor):
        return data.pin_memory()
    if callable(getattr(data, "pin_memory", None)):
        return data.pin_memory()
    if isinstance(data, Mapping):
        values = {key: pinned(value) for key, value in data.items()}
        return values if type(data) is dict else type(data)(values)  # type: ignore[call-arg] # as torch's loader does
    if isinstance(data, tuple) and hasattr(data, "_fields"):
        return type(data)(*(pinned(value) for value in data))
    if isinstance(data, Sequence) and not isinstance(data, str | bytes | bytearray):
        return type(data)([pinned(value) for value in data])  # type: ignore[call-arg] # as torch's loader does
    return data


def on_this_device(change: Callable[[T], U]) -> Callable[[T], U]:
    """Return `change`, which pins an item's tensors, in a form to call in another thread.

    It then pins for the GPU of the thread that calls `on_this_device`, not for the first GPU.
    """
    if not torch.cuda.is_available():
        return change
    device = torch.cuda.current_device()

    def changed(item: T) -> U:
        """Apply `change` with this thread's GPU as the current device."""
        torch.cuda.set_device(device)
        return change(item)

    return changed


def in_thread(items: Iterator[T], change: Callable[[T], U], depth: int) -> Generator[U, None, None]:
    """Yield `change(item)` for each item, computed by a thread that is up to `depth` items ahead.

    An error in the thread is raised here.
    """
    room = threading.Semaphore(depth)
    ready: queue.SimpleQueue[tuple[str, Any]] = queue.SimpleQueue()
    stop = threading.Event()

    def run() -> None:
        """Change each item and put it into the queue, until stopped or out of items."""
        try:
            for item in items:
                ready.put(("item", change(item)))
                room.acquire()
                if stop.is_set():
                    return
            ready.put(("end", None))
        except BaseException as error:  # noqa: BLE001 - raised again where it is waited for
            ready.put(("error", error))

    thread = threading.Thread(target=run, name="pinning", daemon=True)
    thread.start()
    try:
        while True:
            kind, what = ready.get()
            if kind == "error":
                raise what
            if kind == "end":
                return
            room.release()
            yield what
    finally:
        stop.set()
        room.release()
        thread.join()
