"""Forward and backward passes, to be left where nothing that they compute will be kept: another rank was lost.

They would fail by themselves, but only when ranks add up their gradients: with DDP at the end of a backward pass.
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
    """Those of the thread that makes this, and of a model with these parameters. `check` raises where they are left."""

    def __init__(self, check: Callable[[], None], parameters: Iterable[nn.Parameter]) -> None:
        self._check, self._thread, self._parameters = check, threading.get_ident(), list(parameters)
        self._hooks: list[RemovableHandle] = []

    def leave(self) -> None:
        """By another thread, in the middle of one: from now on `check` is called before each module's forward pass, and
        where some of the parameters, evenly over the model, have their gradients. Before that it costs nothing.

        Modules are left alone where something was compiled: it would be compiled anew, with the call in it.
        """
        if self._hooks:
            return
        if not has_compiled():
            self._hooks.append(register_module_forward_pre_hook(self._at_module))
        learn = [one for one in self._parameters if one.requires_grad]
        few = learn[:: 1 + len(learn) // _MOST]
        self._hooks += [one.register_post_accumulate_grad_hook(self._at_gradient) for one in few]

    def close(self) -> None:
        """Not while another thread may say `leave`."""
        for one in self._hooks:
            one.remove()
        self._hooks.clear()

    def _at_gradient(self, _: Tensor) -> None:
        """On GPUs in a thread of autograd's."""
        self._check()

    def _at_module(self, *_: Any) -> None:
        """Threads that look after data or metrics may have modules of their own."""
        if threading.get_ident() == self._thread:
            self._check()
