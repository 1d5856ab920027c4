"""The channel from an agent to its ranks with `recovery.mode` hot: two FIFOs per rank, the first named by
LAUNCH_CONTROL, one JSON object a line. A generation is one set of ranks that train together.

The only message tells a rank that it belongs to a new generation, and where the generation's ranks meet. If a rank was
lost, survivors act on it at once, because they would otherwise wait for the lost rank. If none was lost and others are
to join, the message comes on a second FIFO, whose name ends in `.step-end`, and all ranks act on it at the end of a
step.

    {"generation": 3, "log": "/.../rank-00001.log", "log_before": "/...", "environment": {"MASTER_PORT": "21034", ...}}
"""

import contextlib
import os
from collections.abc import Mapping
from pathlib import Path

import msgspec


def control_of(progress: Path) -> Path:
    """Return the path of the control FIFO for the rank whose FIFO of reports is `progress`."""
    return progress.with_suffix(".control")


def step_end_of(control: Path) -> Path:
    """Return the path of the second FIFO, beside `control`, for messages that can wait for the end of a step."""
    return control.with_name(f"{control.name}.step-end")


class ControlPipe:
    """The agent's ends of the two control FIFOs of one rank: one, at `path`, for messages on which the rank acts at
    once, and one beside it for those on which it acts at the end of its step.
    """

    def __init__(self, path: Path) -> None:
        self._fds = {one: _fifo(one) for one in (path, step_end_of(path))}
        self._path = path

    def send(self, message: Mapping[str, object], *, at_step_end: bool) -> None:
        """Send a message to the rank without waiting until it is read; drop it if the FIFO is full, or `close` was
        called.

        The rank acts on it at the end of its step with `at_step_end`, else at once. Messages tell a rank to train on in
        a new generation. If a rank does not read one, that generation fails without it, and all ranks are replaced.
        """
        fd = self._fds.get(step_end_of(self._path) if at_step_end else self._path)
        if fd is not None:
            with contextlib.suppress(BlockingIOError):
                os.write(fd, msgspec.json.encode(message) + b"\n")

    def close(self) -> None:
        """Close and delete the FIFOs."""
        for path, fd in self._fds.items():
            os.close(fd)
            path.unlink(missing_ok=True)
        self._fds = {}


def _fifo(path: Path) -> int:
    """Replace whatever is at `path` by a new FIFO, and return a descriptor that is open for reading and writing, so
    that a message waits there until the rank opens it.
    """
    path.unlink(missing_ok=True)
    os.mkfifo(path, 0o600)
    # Read and write, so that a message waits there for a rank that has not opened it yet.
    return os.open(path, os.O_RDWR | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC)
