"""The agent → rank wire, with recovery.mode hot: a FIFO per rank, named by LAUNCH_CONTROL, one JSON object a line.

The one word there is: the rank is one of a new generation now, in which it meets the others again.

    {"generation": 3, "log": "/.../rank-00001.log", "log_before": "/...", "environment": {"MASTER_PORT": "21034", ...}}
"""

import contextlib
import os
from collections.abc import Mapping
from pathlib import Path

import msgspec


def control_of(progress: Path) -> Path:
    """Beside the FIFO on which the rank reports."""
    return progress.with_suffix(".control")


class ControlPipe:
    """The agent's end of it."""

    def __init__(self, path: Path) -> None:
        path.unlink(missing_ok=True)
        os.mkfifo(path, 0o600)
        # Read and write, so that a word waits there for a rank that has not opened it yet.
        self._fd = os.open(path, os.O_RDWR | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC)
        self._path = path
        self._closed = False

    def say(self, word: Mapping[str, object]) -> None:
        """A rank that takes nothing any more does not meet the others: they fail, and all are replaced."""
        with contextlib.suppress(BlockingIOError):
            os.write(self._fd, msgspec.json.encode(word) + b"\n")

    def close(self) -> None:
        if not self._closed:
            self._closed = True
            os.close(self._fd)
            self._path.unlink(missing_ok=True)
