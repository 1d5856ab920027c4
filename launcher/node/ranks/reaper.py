"""The one place in an agent that waits for children: its own, and the orphans that it inherits as a subreaper."""

import asyncio
import os
import signal
from collections.abc import Callable
from typing import NamedTuple


class Death(NamedTuple):
    """The end of a process, as the kernel reported it to its parent."""

    status: int  # raw wait status
    peak_memory_bytes: int

    @property
    def code(self) -> int | None:
        return os.WEXITSTATUS(self.status) if os.WIFEXITED(self.status) else None

    @property
    def signal(self) -> int | None:
        return os.WTERMSIG(self.status) if os.WIFSIGNALED(self.status) else None


class Reaper:
    """Reaps on SIGCHLD and tells whoever asked about that pid; a pid nobody asked about is an orphan, and forgotten."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._watched: dict[int, Callable[[Death], None]] = {}
        self._births = 0  # that are under way: of a child whose pid is not known yet
        self._early: dict[int, Death] = {}  # of children that nobody had asked about meanwhile
        self._loop = loop
        self.on_stop: Callable[[], None] = lambda: None  # called when a signal has stopped a child
        loop.add_signal_handler(signal.SIGCHLD, self.reap)

    def watch(self, pid: int, tell: Callable[[Death], None]) -> None:
        """Call `tell` once, when this child, or child to be, has ended."""
        if pid in self._early:
            self._loop.call_soon(tell, self._early.pop(pid))
        else:
            self._watched[pid] = tell

    def expect_birth(self) -> None:
        """Keep the deaths of unknown children until `born`: one may be of the child whose pid is told next."""
        self._births += 1

    def born(self) -> None:
        """End a birth: the pid is known and watched, or there is none."""
        self._births -= 1
        if not self._births:
            self._early.clear()

    def reap(self) -> None:
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
