"""Leave forward and backward passes whose results will not be kept because another rank was lost.

They would fail by themselves, but only when ranks reduce their gradients: with DDP at the end of a backward pass.
"""

import threading
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from torch import Tensor, nn
from torch.nn.modules.module import register_module_forward_pre_hook

from trainer.strategies.compiling import has_compiled

if TYPE_CHECKING:
    from torch.utils.hooks import RemovableHandle

_MOST = 32  # parameters: a call that is taken back costs half a microsecond in each backward pass from then on


class Passes:
    """The passes of the current thread over these parameters; `check` raises to leave them."""

    def __init__(self, check: Callable[[], None], parameters: Iterable[nn.Parameter]) -> None:
        self._check, self._thread, self._parameters = check, threading.get_ident(), list(parameters)
        self._hooks: list[RemovableHandle] = []

    def leave(self) -> None:
        """Have `check` called from now on before each module's forward pass and at some parameters' gradients.

        Another thread calls this in the middle of a pass; before that it costs nothing. Modules get no hook if
        something was compiled, as it would be compiled again with the hook in it.
        """
        if self._hooks:
            return
        if not has_compiled():
            self._hooks.append(register_module_forward_pre_hook(self._at_module))
        learn = [one for one in self._parameters if one.requires_grad]
        few = learn[:: 1 + len(learn) // _MOST]
        self._hooks += [one.register_post_accumulate_grad_hook(self._at_gradient) for one in few]

    def close(self) -> None:
        """Remove the hooks; no other thread may call `leave` meanwhile."""
        for one in self._hooks:
            one.remove()
        self._hooks.clear()

    def _at_gradient(self, _: Tensor) -> None:
        self._check()

    def _at_module(self, *_: Any) -> None:
        """Check in the training's own thread only, as threads for data or metrics may have modules of their own."""
        if threading.get_ident() == self._thread:
            self._check()
