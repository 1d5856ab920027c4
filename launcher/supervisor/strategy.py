"""Define what a place adds to the supervisor's program (`__main__.py`). A place is where a run goes, such as this
machine, an SSH pool or a batch job.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import BinaryIO

from launcher.copies.memory_tier import close_tier
from launcher.errors import Exit
from launcher.run.fence import raise_fence
from launcher.run.layout import AttemptDir, RunDir
from launcher.run.records import AttemptEnd
from launcher.states import State
from launcher.supervisor.own_log import log_to


class Strategy:
    """The part of a supervisor that differs by place. Creating one starts nothing, as the process has yet to detach."""

    stands_by = True  # the supervisor is started early and begins when its starter sends a message
    leaves_with = int(Exit.OK)  # the exit code if the run continues without this process
    detached = False  # the starter has already detached this process from itself

    def __init__(self, folder: Path, words: Sequence[str]) -> None:
        """Take the run's folder, and the arguments that follow it on the command line."""
        self.run, self.words = RunDir(folder), words

    def boot(self) -> bytes:
        """Prepare what the starter waits for, such as a socket on which this process listens, and return the line that
        tells the starter how to reach this process. By default nothing is prepared.
        """
        return b"up\n"

    def supervise(self, go: BinaryIO) -> int:
        """Supervise the run until it has ended or continues without this process, and return the exit code.

        `go` yields what the starter sends, such as the message to begin, and ends once all was sent or the starter has
        died; it is empty if the supervisor begins at once. A subclass has to define this method.
        """
        raise NotImplementedError

    def carry(self, attempt: AttemptDir | None) -> int:
        """Run `attempt` and the attempts that follow it in this process, and return the exit code of the last. Return
        the class's `leaves_with` (0 by default) if the run continues without this process, or if `attempt` is None, for
        which nothing is run.

        Raise Fenced if a newer attempt exists, Damaged if the fence cannot be read, and OSError if the log cannot be
        opened.
        """
        while attempt is not None:
            log_to(attempt.supervisor_log)
            raise_fence(self.run, attempt.number)
            end = self.carry_out(attempt)
            if end.state is not State.QUEUED:
                close_tier(self.run.path, attempt.number)  # of agents that were killed
                return end.exit_code
            attempt = self.follow(attempt, end)
        return self.leaves_with

    def carry_out(self, attempt: AttemptDir) -> AttemptEnd:
        """Run one attempt and return how it ended. The method `carry`, which runs attempts one after the other, calls
        it for each; so a subclass that uses `carry` has to define it.
        """
        raise NotImplementedError

    def follow(self, attempt: AttemptDir, end: AttemptEnd) -> AttemptDir | None:
        """Return the attempt that is to run in this process after `attempt`, which ended with `end`; None if there is
        none. The method `carry`, which runs attempts one after the other, calls it after each; so a subclass that
        uses `carry` has to define it.
        """
        raise NotImplementedError
