"""What a place adds to the supervisor's program (`__main__.py`)."""

from collections.abc import Sequence
from pathlib import Path
from typing import BinaryIO

from launcher.rundir.layout import RunDir


class Strategy:
    """How the supervisor of one run works at one place. Starts nothing when made: the process has yet to detach."""

    stands_by = True  # it is started before it is needed, and told by its starter when to begin
    detached = False  # whoever started it has detached it already

    def __init__(self, folder: Path, words: Sequence[str]) -> None:
        """Take the run's folder, and the words that follow it on the command line."""
        self.run, self.words = RunDir(folder), words

    def boot(self) -> bytes:
        """Get ready, and return the line that tells the starter how this process is reached."""
        return b"up\n"

    def supervise(self, go: BinaryIO) -> int:
        """Carry the run until it has ended or goes on without this process, and return the exit code.

        `go` gives what the starter says; it ends when that has said all, or died.
        """
        raise NotImplementedError
