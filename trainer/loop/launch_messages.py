"""Receive launch's messages to one rank, also in the middle of a forward or backward pass."""

from collections.abc import Callable, Iterable
from pathlib import Path

from torch import nn

from trainer.connections import ConnectionCutter, group_connections
from trainer.loop.passes import Passes
from trainer.recovery.control import Control, RejoinMessage


class LaunchMessages:
    """The message that the ranks meet again: waited for, or watched for while the rank trains."""

    def __init__(self) -> None:
        self._control: Control | None = None
        self._lookout: ConnectionCutter | None = None
        self._passes: Passes | None = None

    @property
    def opened(self) -> bool:
        """Whether launch can send this rank messages."""
        return self._control is not None

    def open(self, path: Path | None) -> None:
        """Open the pipe at `path`, if it is not open. Raises OSError."""
        if self._control is None and path is not None:
            self._control = Control(path)

    def wait(self, within_s: float) -> RejoinMessage | None:
        """Return the newest message, or None if none comes within `within_s`."""
        return None if self._control is None else self._control.wait(within_s)

    def fileno(self) -> int:
        """Return the descriptor that is readable once there is a message that cannot wait; -1 if there is no pipe."""
        return -1 if self._control is None else self._control.fileno()

    @property
    def has_one_for_step_end(self) -> bool:
        """Whether there is a message that can wait for the end of a step."""
        return self._control is not None and self._control.has_message_for_step_end

    def watch(
        self, parameters: Iterable[nn.Parameter] | None = None, unless: Callable[[], bool] = lambda: False
    ) -> None:
        """Cut the connections at a message, since no operation fails by itself if a node is only silent.

        With `parameters`, passes over them are left by an error too, except while `unless` returns True.
        """

        def check() -> None:
            if not unless():
                group_connections.check()

        if parameters is not None:
            self._passes = Passes(check, parameters)
        if self._lookout is None and self._control is not None:
            self._lookout = group_connections.cut_on(self._control.fileno(), self.leave_passes)

    def leave_passes(self) -> None:
        """Have passes left; the watching thread calls it, as the training's may be blocked."""
        if self._passes is not None:
            self._passes.leave()

    def unwatch(self) -> None:
        """Stop watching."""
        for one in (self._lookout, self._passes):  # in this order
            if one is not None:
                one.close()
        self._lookout = self._passes = None
