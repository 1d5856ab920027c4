"""Batches of any nesting to a device."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor


def placed(data: Any, device: torch.device) -> Any:
    """The same with every tensor on the device. Pinned ones travel while the GPU works."""
    if isinstance(data, Tensor):
        return data.to(device, non_blocking=True)
    if isinstance(data, Mapping):
        return {key: placed(value, device) for key, value in data.items()}
    if isinstance(data, tuple) and hasattr(data, "_fields"):
        return type(data)(*(placed(value, device) for value in data))
    if isinstance(data, (list, tuple)):
        return type(data)(placed(value, device) for value in data)
    if hasattr(data, "to"):
        return data.to(device)
    return data
