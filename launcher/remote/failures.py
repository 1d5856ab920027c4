"""What goes wrong with a connection. None of it says that a run has failed: it is not seen.

Unreachable
  Dropped     the host hung up before it said a word
  NoAccess    it does not let us in
  Lost        it did, and then:
    Broken    the connection ended
    Silent    no answer came in time
"""

from launcher.errors import Unreachable


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
    """The first line of what an error says."""
    said = (getattr(error, "strerror", None) or str(error)) if error is not None else ""
    return said.splitlines()[0][:200] if said else type(error).__name__
