"""Errors of a connection. None of them says that a run has failed: it cannot be seen.

Unreachable
  Dropped     the host hung up before it said a word
  NoAccess    it does not let us in
  Lost        it did, and then:
    Broken    the connection ended
    Silent    no answer came in time
"""

import time
from typing import Generic, TypeVar

from launcher.errors import LaunchError, Unreachable

_QUIET_S = 30.0

T = TypeVar("T")


class Dropped(Unreachable):
    """The host hung up before it said a word: its sshd has too many logins at the moment."""


class NoAccess(Unreachable):
    """The host does not let us in."""


class Lost(Unreachable):
    """The connection ended, or no answer came in time: what was asked may have happened, or may still happen."""


class Broken(Lost):
    """The connection was there and ended before the answer came: what was asked may have happened."""


class Silent(Lost):
    """The connection is there and the answer did not come in time: what was asked may still happen."""


def why(error: BaseException | None) -> str:
    """Return the first line of an error's message."""
    said = (getattr(error, "strerror", None) or str(error)) if error is not None else ""
    return said.splitlines()[0][:200] if said else type(error).__name__


class SilentMachines(Generic[T]):
    """Machines that did not answer a moment ago: whoever watches runs does not wait for them every time."""

    def __init__(self) -> None:
        self._found: dict[T, tuple[float, LaunchError]] = {}

    def note(self, machine: T, why: LaunchError) -> LaunchError:
        """Have it left alone for a while, and return why."""
        self._found[machine] = (time.monotonic() + _QUIET_S, why)
        return why

    def why(self, machine: T) -> LaunchError | None:
        """Return why it is not to be asked again so soon, or None if it may be."""
        until, why = self._found.get(machine, (0.0, None))
        return why if time.monotonic() < until else None

    def forget(self, machine: T) -> None:
        """Take note that it answers again."""
        self._found.pop(machine, None)
