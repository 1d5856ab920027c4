"""The result of wrapping a model, common to all strategies."""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

from torch import nn

Syncing = Callable[[bool], AbstractContextManager[None]]
_NOTHING: AbstractContextManager[None] = nullcontext()


def no_syncing(_: bool) -> AbstractContextManager[None]:
    """Return a context that does nothing, for a model whose passes reduce no gradients.

    It stands for a function whose argument says whether the pass is the step's last, which reduces the gradients.
    """
    return _NOTHING


@dataclass(frozen=True, slots=True)
class Wrapped:
    """A wrapped model, and how its passes are run.

    `syncing(last)` returns a context for a forward pass, whose backward pass reduces gradients only if `last`. `do`
    calls a function inside the wrapper's forward pass (None: just call it). `first_updates`: only rank 0 has the sum of
    gradients. `follows_first_rank`: the wrapper itself copies rank 0's buffers. `around` returns the context for all
    passes.
    """

    model: nn.Module
    syncing: Syncing = no_syncing
    do: Callable[[Callable[[nn.Module], Any]], Any] | None = None  # calls a function in the wrapper
    first_updates: bool = False  # the first rank alone has the sum of all gradients
    follows_first_rank: bool = True  # in its buffers, by itself
    around: Callable[[], AbstractContextManager[None]] = nullcontext  # forward and backward passes
