"""Activation checkpointing: a block's activations are computed again in the backward pass instead of being kept."""

import functools
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

Buffers = list[tuple[nn.Module, str, Tensor]]
_made: dict[type[nn.Module], type[nn.Module]] = {}


def recompute(block: nn.Module) -> None:
    """Make the block recompute. In place: names of parameters stay as they are."""
    # By its class, as fully_shard does it: nn.DataParallel copies an instance's own `forward` with the wrong self.
    kind = type(block)
    if kind not in _made:
        _made[kind] = _recomputing(kind)
    block.__class__ = _made[kind]


def _recomputing(kind: type[nn.Module]) -> type[nn.Module]:
    def forward(self: nn.Module, *args: Any, **kwargs: Any) -> Any:
        run = functools.partial(kind.forward, self)
        if not torch.is_grad_enabled():
            return run(*args, **kwargs)
        if torch.compiler.is_compiling() or next(self.buffers(), None) is None:
            return checkpoint(run, *args, use_reentrant=False, **kwargs)
        return checkpoint(run, *args, use_reentrant=False, context_fn=lambda: _contexts(self), **kwargs)

    return type(kind.__name__, (kind,), {"forward": forward, "__module__": kind.__module__})


def _contexts(block: nn.Module) -> tuple[AbstractContextManager[None], AbstractContextManager[None]]:
    """For the forward pass and its repetition, which must see the buffers that the first one saw, and change none.

    Without this BatchNorm would count each batch twice.
    """
    return nullcontext(), _with_buffers([(part, name, buffer.clone()) for part, name, buffer in _buffers(block)])


def _buffers(block: nn.Module) -> Buffers:
    return [(part, name, buffer) for part in block.modules() for name, buffer in part.named_buffers(recurse=False)]


@contextmanager
def _with_buffers(before: Buffers) -> Iterator[None]:
    """Others are put in their place, nothing is written into them: autograd may have saved them."""
    now = [(part, name, getattr(part, name)) for part, name, _ in before]
    _place(before)
    try:
        yield
    finally:
        _place(now)


def _place(buffers: Buffers) -> None:
    for part, name, buffer in buffers:
        setattr(part, name, buffer)
