"""Copy the state into reused host memory, so that the next step may change it while it is written to disk."""

import threading
from collections.abc import Mapping

import torch
from torch import Tensor

from trainer.checkpoint.planning import Part, WritePlan, local_part
from trainer.checkpoint_files.direct import PAGE_BYTES


class Staging:
    """A buffer of host memory, pinned if there is a GPU so that it fills at the speed of the bus."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._buffer = torch.empty(0, dtype=torch.uint8)
        self._copied: torch.cuda.Event | None = None
        self._reserving: threading.Thread | None = None

    def reserve(self, size: int) -> None:
        """Start to allocate at least `size` bytes in the background; the next `reserve` or `fill` waits for it.

        It is done ahead, as the first touch of a page costs far more than copying into it.
        """
        self._await_allocation()
        if self._buffer.numel() < size:
            self._reserving = threading.Thread(target=self._allocate, args=(size,), name="reserve", daemon=True)
            self._reserving.start()

    def fill(self, plan: WritePlan, tensors: Mapping[str, Tensor]) -> None:
        """Copy the plan's parts of `tensors` into the buffer; the tensors may change once this returns.

        On a GPU the copy is only queued, and the bytes are complete after `filled()`. Raises ValueError if a tensor has
        another shape than planned.
        """
        self._await_allocation()
        if self._buffer.numel() < plan.size:
            self._allocate(plan.size)
        with torch.no_grad():
            for part in plan.parts:
                source = local_part(tensors[part.name], part)
                raw = self._buffer[part.at : part.at + part.size]
                raw.view(part.dtype).view(source.shape).copy_(source, non_blocking=True)
        if self._device.type == "cuda":
            self._copied = torch.cuda.Event()
            self._copied.record(torch.cuda.current_stream(self._device))

    def filled(self, size: int) -> memoryview:
        """Wait until the copy is complete and return the first `size` bytes of the buffer."""
        if self._copied is not None:
            self._copied.synchronize()
            self._copied = None
        return bytes_of(self._buffer[:size])

    def _allocate(self, size: int) -> None:
        """Allocate the buffer aligned to whole pages, as O_DIRECT writes need it."""
        # On whole pages, or it could not be written past the page cache.
        raw = torch.empty(size + PAGE_BYTES, dtype=torch.uint8, pin_memory=self._device.type == "cuda")
        begin = -raw.data_ptr() % PAGE_BYTES
        self._buffer = raw[begin : begin + size].zero_()

    def _await_allocation(self) -> None:
        """Wait until the buffer is allocated, if a thread does that in the background."""
        if self._reserving is not None:
            self._reserving.join()
            self._reserving = None


def bytes_of(tensor: Tensor) -> memoryview:
    """Return a view of the memory of a flat CPU tensor of bytes."""
    view: memoryview = tensor.numpy().data
    return view


def is_finite(staged: memoryview, part: Part) -> bool:
    """Return whether all numbers of a part (a box of a tensor, in the staging buffer `staged`) are finite.

    Integers and numbers of one byte, such as float8, are not examined: the answer is True.
    """
    if not (part.dtype.is_floating_point or part.dtype.is_complex) or part.dtype.itemsize == 1 or not part.size:
        return True  # integers are; some one-byte types have no infinities
    numbers = torch.frombuffer(staged, dtype=torch.uint8, count=part.size, offset=part.at).view(part.dtype)
    numbers = torch.view_as_real(numbers) if part.dtype.is_complex else numbers
    # One pass without a copy. Both are NaN where any number is.
    return all(bool(end.isfinite()) for end in torch.aminmax(numbers))
