"""Wait for all children of an agent: its own, and the orphans that it inherits as a subreaper."""

import asyncio
import os
import signal
from collections.abc import Callable
from typing import NamedTuple


class Death(NamedTuple):
    """The end of a process as the kernel reports it: its wait status, and the peak memory of it and its children."""

    status: int  # raw wait status
    peak_memory_bytes: int

    @property
    def code(self) -> int | None:
        """Return the exit code, or None if a signal ended the process."""
        return os.WEXITSTATUS(self.status) if os.WIFEXITED(self.status) else None

    @property
    def signal(self) -> int | None:
        """Return the signal that ended the process, or None if it exited by itself."""
        return os.WTERMSIG(self.status) if os.WIFSIGNALED(self.status) else None


class Reaper:
    """The handler of SIGCHLD, which reaps every child that has ended. It calls back for each pid that is watched; the
    end of another child, an orphan, is reported to nobody.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._watched: dict[int, Callable[[Death], None]] = {}
        self._births = 0  # that are under way: of a child whose pid is not known yet
        self._early: dict[int, Death] = {}  # deaths of children that are not watched yet
        self._loop = loop
        self.on_stop: Callable[[], None] = lambda: None  # called when a signal has stopped a child
        loop.add_signal_handler(signal.SIGCHLD, self.reap)

    def watch(self, pid: int, tell: Callable[[Death], None]) -> None:
        """Call `tell` once when child `pid` has ended, at once if it has ended before this call."""
        if pid in self._early:
            self._loop.call_soon(tell, self._early.pop(pid))
        else:
            self._watched[pid] = tell

    def expect_birth(self) -> None:
        """Keep the deaths of children that are not watched until `born` is called, once for each call of this method:
        a child may die before its pid is reported here, and `watch` then finds its death.
        """
        self._births += 1

    def born(self) -> None:
        """Undo one call of `expect_birth`, because the expected child's pid is now watched or no child was started.

        Once each call is undone, the kept deaths of unknown children are forgotten, and no more are kept.
        """
        self._births -= 1
        if not self._births:
            self._early.clear()

    def reap(self) -> None:
        """Reap all children that have ended, without waiting for others, and call back for those that are watched.

        Ends of unknown children are kept while a child is being started, and else dropped. For a child that a signal
        has stopped, `on_stop` is called.
        """
        while True:
            try:
                pid, status, usage = os.wait4(-1, os.WNOHANG | os.WUNTRACED)
            except ChildProcessError:
                return
            if pid == 0:
                return
            if os.WIFSTOPPED(status):
                self.on_stop()
                continue
            death = Death(status, usage.ru_maxrss * 1024)
            tell = self._watched.pop(pid, None)
            if tell is not None:
                tell(death)
            elif self._births:
                self._early[pid] = death
