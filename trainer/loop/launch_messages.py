"""Receive launch's messages to one rank, even in the middle of a forward or backward pass."""

import threading
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch import Tensor, nn
from torch.nn.modules.module import register_module_forward_pre_hook

from trainer.connections import ConnectionCutter, group_connections
from trainer.recovery.control import Control, RejoinMessage
from trainer.strategies.compiling import has_compiled

if TYPE_CHECKING:
    from torch.utils.hooks import RemovableHandle

_MOST = 32  # parameters: a call that is taken back costs half a microsecond in each backward pass from then on


class LaunchMessages:
    """Receives launch's message to one rank that ranks were replaced or join, so that all have to reconnect.

    `wait` waits for it, and `watch` lets it interrupt a step.
    """

    def __init__(self) -> None:
        self._control: Control | None = None
        self._lookout: ConnectionCutter | None = None
        self._passes: Passes | None = None

    @property
    def opened(self) -> bool:
        """Whether the FIFO is open on which launch sends this rank messages."""
        return self._control is not None

    def open(self, path: Path | None) -> None:
        """Open the pipe at `path`, unless one is open or `path` is None. Raises OSError if it cannot be opened."""
        if self._control is None and path is not None:
            self._control = Control(path)

    def wait(self, within_s: float) -> RejoinMessage | None:
        """Wait up to `within_s` seconds for a message; return the newest, or None if none came or no pipe is open."""
        return None if self._control is None else self._control.wait(within_s)

    def fileno(self) -> int:
        """Return the descriptor that is readable once a message has come for which the step must be left at once.

        That is so if a rank was lost. Messages that can wait for the step's end come over another descriptor. Returns
        -1 if no pipe is open.
        """
        return -1 if self._control is None else self._control.fileno()

    @property
    def has_one_for_step_end(self) -> bool:
        """Whether a message has come that can wait for the end of a step: no rank was lost, but others are to join."""
        return self._control is not None and self._control.has_message_for_step_end

    def watch(
        self, parameters: Iterable[nn.Parameter] | None = None, unless: Callable[[], bool] = lambda: False
    ) -> None:
        """Start a thread that cuts the connections to other ranks when a message comes, so that operations fail.

        That is needed if a node only fell silent, as then no operation would fail by itself. With `parameters`, forward
        and backward passes over them raise an error too, except while `unless` returns True. `unwatch` ends the thread.
        """

        def check() -> None:
            """Raise DistNetworkError if the connections were cut, unless passes have to be finished."""
            if not unless():
                group_connections.check()

        if parameters is not None:
            self._passes = Passes(check, parameters)
        if self._lookout is None and self._control is not None:
            self._lookout = group_connections.cut_on(self._control.fileno(), self.leave_passes)

    def leave_passes(self) -> None:
        """Make the forward or backward pass that the training's thread is in raise DistNetworkError.

        The watching thread calls it, as the training's thread may be blocked. It has no effect if `watch` was called
        without `parameters`, or while the passes have to be finished.
        """
        if self._passes is not None:
            self._passes.leave()

    def unwatch(self) -> None:
        """Stop watching for messages, and remove the hooks from the parameters' passes."""
        for one in (self._lookout, self._passes):  # in this order
            if one is not None:
                one.close()
        self._lookout = self._passes = None


class Passes:
    """The forward and backward passes over `parameters` in the thread that makes this object, which can end early.

    Once `leave` was called, each pass calls `check` several times; it raises an error, such as for a lost rank, if the
    pass must end. Without this, a pass would fail after the loss of another rank only when gradients are reduced, which
    with DDP is at its end.
    """

    def __init__(self, check: Callable[[], None], parameters: Iterable[nn.Parameter]) -> None:
        self._check, self._thread, self._parameters = check, threading.get_ident(), list(parameters)
        self._hooks: list[RemovableHandle] = []

    def leave(self) -> None:
        """Have each pass from now on, and the one under way, call the `check` that this object was made with.

        `check` raises if the pass must end, such as after the loss of a rank. It is called before each module's forward
        pass, and when a few dozen parameters, spread over the model, get their gradients. Another thread than that of
        the passes calls `leave`.
        Hooks are added only here, so training costs nothing before. If torch.compile has compiled anything, modules get
        no hook, as they would be compiled again with the hook in them.
        """
        if self._hooks:
            return
        if not has_compiled():
            self._hooks.append(register_module_forward_pre_hook(self._at_module))
        learn = [one for one in self._parameters if one.requires_grad]
        few = learn[:: 1 + len(learn) // _MOST]
        self._hooks += [one.register_post_accumulate_grad_hook(self._at_gradient) for one in few]

    def close(self) -> None:
        """Remove the hooks that `leave` has added, if it was called; no other thread may call `leave` meanwhile."""
        for one in self._hooks:
            one.remove()
        self._hooks.clear()

    def _at_gradient(self, _: Tensor) -> None:
        self._check()

    def _at_module(self, *_: Any) -> None:
        """Call `check`, which raises if the pass has to end, before a module's forward pass in the training's thread.

        It is a hook on all modules; other threads, such as those for data, may have modules of their own.
        """
        if threading.get_ident() == self._thread:
            self._check()
