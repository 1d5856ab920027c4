"""Parameters that other ranks have: of a model in stages, each rank has those of its own.

In the place of others is one with their name, shape and type, in the memory of a single number, that never has a
gradient. So a model, and whoever is handed its parameters, looks alike on all ranks: names, sizes, groups.
"""

import torch
from torch import Tensor, nn


def elsewhere(parameter: nn.Parameter, device: torch.device) -> nn.Parameter:
    """What stands for a parameter on a rank that does not have it."""
    nothing = torch.zeros((), dtype=parameter.dtype, device=device).expand(parameter.shape)
    found = nn.Parameter(nothing, requires_grad=parameter.requires_grad)
    found.has_its_numbers_elsewhere = True  # type: ignore[attr-defined] # a tensor takes any attribute
    return found


def is_here(tensor: Tensor) -> bool:
    """Whether this rank has its numbers, or a part of them."""
    return not getattr(tensor, "has_its_numbers_elsewhere", False)
