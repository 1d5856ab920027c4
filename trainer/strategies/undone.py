"""Run passes that leave no trace."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import nn

from trainer.checkpoint.generators import restore_generators, state_of_generators


@contextmanager
def undone(module: nn.Module, device: torch.device) -> Iterator[None]:
    """Restore generators, buffers and gradients at the end of the context, which must not change parameters."""
    generators = state_of_generators(device)
    buffers = [(buffer, buffer.clone()) for buffer in module.buffers()]
    gradients = [(parameter, parameter.grad) for parameter in module.parameters()]
    module.zero_grad(set_to_none=True)
    try:
        yield
    finally:
        for parameter, gradient in gradients:
            parameter.grad = gradient
        with torch.no_grad():
            for buffer, before in buffers:
                buffer.copy_(before)
        restore_generators(generators, device)
