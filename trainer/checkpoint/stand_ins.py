"""Stand-ins for parameters that other ranks have, as in a pipeline, where each rank has those of its own stage.

A stand-in has name, shape and type of the parameter, the memory of a single number, and never a gradient. The model and
its optimizer look alike on all ranks this way.
"""

import torch
from torch import Tensor, nn


def stand_in(parameter: nn.Parameter, device: torch.device) -> nn.Parameter:
    """Return a stand-in for a parameter that this rank does not have."""
    nothing = torch.zeros((), dtype=parameter.dtype, device=device).expand(parameter.shape)
    found = nn.Parameter(nothing, requires_grad=parameter.requires_grad)
    found.is_stand_in = True  # type: ignore[attr-defined] # a tensor takes any attribute
    return found


def is_here(tensor: Tensor) -> bool:
    """Return whether this rank has the tensor's numbers, or a part of them."""
    return not getattr(tensor, "is_stand_in", False)
