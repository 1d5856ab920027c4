"""Stand-ins (empty tensors) for parameters that only other ranks have, as in a pipeline of several stages.

A stand-in has name, shape and type of the parameter, the memory of a single number, and never a gradient. The model and
its optimizer look alike on all ranks this way.
"""

import torch
from torch import Tensor, nn


def stand_in(parameter: nn.Parameter, device: torch.device) -> nn.Parameter:
    """Return the stand-in, on `device`, for a parameter that this rank does not have.

    It has the shape, type and `requires_grad` of `parameter`, and is marked, so that `has_values` returns False for it.
    """
    nothing = torch.zeros((), dtype=parameter.dtype, device=device).expand(parameter.shape)
    found = nn.Parameter(nothing, requires_grad=parameter.requires_grad)
    found.is_stand_in = True  # type: ignore[attr-defined] # a tensor takes any attribute
    return found


def has_values(tensor: Tensor) -> bool:
    """Return whether the tensor is no stand-in: this rank has its values, or a shard of them."""
    return not getattr(tensor, "is_stand_in", False)
