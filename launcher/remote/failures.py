"""Errors of a connection. Each means that a host cannot be observed, and none that a run has failed there.

Unreachable
  Dropped     the host closed the connection before it sent anything
  NoAccess    the host refuses the login
  Lost        after the login:
    Broken    the connection ended
    Silent    no answer came in time
"""

import time
from typing import Generic, TypeVar

from launcher.errors import LaunchError, Unreachable

_QUIET_S = 30.0

T = TypeVar("T")


class Dropped(Unreachable):
    """Raised when the host closed the connection before it sent anything, as its sshd has too many logins at the
    moment.
    """


class NoAccess(Unreachable):
    """Raised when the host refuses the login."""


class Lost(Unreachable):
    """Raised when the connection ended, or no answer came in time: the request may have been carried out, or may still
    be.
    """


class Broken(Lost):
    """Raised when the connection ended before the answer came: the request may have been carried out."""


class Silent(Lost):
    """Raised when no answer came in time although the connection exists: the request may still be carried out."""


def why(error: BaseException | None) -> str:
    """Return the first line of an error's message, or the name of its type if it has none."""
    said = (getattr(error, "strerror", None) or str(error)) if error is not None else ""
    return said.splitlines()[0][:200] if said else type(error).__name__


class SilentMachines(Generic[T]):
    """The machines that failed to answer in the last 30 seconds, as recorded by `note`. A process that watches runs
    looks here, so that it asks none of them again in that time. T is what identifies a machine, such as its address.
    """

    def __init__(self) -> None:
        self._found: dict[T, tuple[float, LaunchError]] = {}

    def note(self, machine: T, why: LaunchError) -> LaunchError:
        """Record that the machine did not answer, because of the error `why`, so that it is skipped for 30 seconds;
        return `why`.
        """
        self._found[machine] = (time.monotonic() + _QUIET_S, why)
        return why

    def why(self, machine: T) -> LaunchError | None:
        """Return the error with which the machine last failed if it is to be skipped now, or None if it may be
        asked.
        """
        until, why = self._found.get(machine, (0.0, None))
        return why if time.monotonic() < until else None

    def forget(self, machine: T) -> None:
        """Stop skipping the machine, because it has answered."""
        self._found.pop(machine, None)
