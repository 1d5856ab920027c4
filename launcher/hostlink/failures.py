"""What goes wrong with a connection. None of it says that a run has failed: it is not seen."""

from launcher.errors import Unreachable


class Dropped(Unreachable):
    """The host hung up before it said a word: its sshd has too many logins at the moment."""


class NoAccess(Unreachable):
    """The host does not let us in."""


class Lost(Unreachable):
    """The connection ended, or no answer came in time: what was asked may have happened, or may still happen."""


def why(error: BaseException | None) -> str:
    """The first line of what an error says."""
    said = (getattr(error, "strerror", None) or str(error)) if error is not None else ""
    return said.splitlines()[0][:200] if said else type(error).__name__
