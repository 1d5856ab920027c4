"""The umask of the submitting user: ranks get it, while the launcher's own files are private to the user."""

import os
from pathlib import Path

_PRIVATE = 0o077
_before: int | None = None  # this process's own, before it made its files private


def make_files_private() -> None:
    """Set the umask so that this process and its children create files that only their user can read, and remember in a
    global variable the umask from before the first call.
    """
    global _before  # noqa: PLW0603 - a umask is of the whole process
    found = os.umask(_PRIVATE)
    _before = found if _before is None else _before


def users_umask() -> int:
    """Return the umask that the user had when this process started."""
    if _before is not None:
        return _before
    # Unlike os.umask, which can only be asked by setting another one, this disturbs no other thread.
    lines = Path("/proc/self/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith("Umask:")).split()[1], 8)
