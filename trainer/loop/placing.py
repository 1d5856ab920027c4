"""Move batches of any nesting to a device."""

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor


def placed(data: Any, device: torch.device, move: Callable[[Tensor], Tensor] | None = None) -> Any:
    """Return the data, nested as before, with every tensor moved to the device, by `move` if it is given.

    Objects of other types are moved by their method `to`, or stay as they are if they have none.
    """
    if isinstance(data, Tensor):
        return data.to(device, non_blocking=True) if move is None else move(data)
    if isinstance(data, Mapping):
        return {key: placed(value, device, move) for key, value in data.items()}
    if isinstance(data, tuple) and hasattr(data, "_fields"):
        return type(data)(*(placed(value, device, move) for value in data))
    if isinstance(data, (list, tuple)):
        return type(data)(placed(value, device, move) for value in data)
    if hasattr(data, "to"):
        return data.to(device)
    return data


class Placing:
    """A function that returns a batch's data on a device, copied there while a GPU still works on earlier batches.

    It copies on a separate stream. The computing stream waits for the whole batch and for nothing else.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._stream = torch.cuda.Stream(device) if device.type == "cuda" else None

    def __call__(self, data: Any) -> Any:
        if self._stream is None:
            return placed(data, self._device)
        moved = placed(data, self._device, self._move)
        torch.cuda.current_stream(self._device).wait_stream(self._stream)
        return moved

    def _move(self, tensor: Tensor) -> Tensor:
        """Return the tensor on the GPU, copied on the separate stream if it comes from the CPU."""
        # What is here already, or on another GPU, was made on this one's stream; what is sparse no stream can keep.
        if tensor.device.type != "cpu" or tensor.layout is not torch.strided:
            return tensor.to(self._device, non_blocking=True)
        with torch.cuda.stream(self._stream):
            moved = tensor.to(self._device, non_blocking=True)
        # Its memory is the copying stream's, which may take it again only when what calculates with it is done.
        moved.record_stream(torch.cuda.current_stream(self._device))
        return moved
