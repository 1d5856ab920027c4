"""Watch for the notice that this host is about to be taken away: the file, command or signal that `notice` of a spec
names.
"""

import asyncio
import os
import shlex
import signal
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from launcher.errors import said_by_the_system
from launcher.node.ranks.reaper import Death, Reaper
from launcher.node.ranks.zygote_link import spawn
from launcher.spec.model import Notice

_ASK_S = 5.0  # interval of the command: clouds give notice at least half a minute ahead
_LIMIT_S = 10.0
_NOT_RUN = (126, 127)  # what a shell exits with for a program that it cannot run, or find


class HostNotice:
    """A repeated check for the spec's notice that this host is about to be taken away. File and command are relative to
    `workdir`, where ranks start.
    """

    def __init__(self, notice: Notice, workdir: Path, environment: Mapping[str, str], reaper: Reaper) -> None:
        self._notice, self._workdir, self._environment, self._reaper = notice, workdir, environment, reaper
        self._file = workdir / Path(notice.file).expanduser() if notice.file is not None else None
        self._signalled = ""
        self._ask_at, self._by_command = 0.0, ""
        self.problem = ""  # why the command could not be asked the last time

    def watch_signal(self) -> None:
        """Treat the signal that `notice.signal` names, if it names one, as the notice from now on."""
        if (name := self._notice.signal) is not None:
            number = signal.Signals[f"SIG{name}"]
            asyncio.get_running_loop().add_signal_handler(number, self._take_signal)

    def _take_signal(self) -> None:
        """Record that the signal was received; from now on `look` returns this as the notice."""
        self._signalled = f"its agent got SIG{self._notice.signal}"

    async def look(self) -> str:
        """Return as text by which file, command or signal notice is given now, or "" if by none: the file exists, the
        command exits with 0, or the signal has been received.

        The command is run if its last run was at least five seconds ago, else its last answer counts. A file or command
        can withdraw its notice, a signal cannot.
        """
        if self._signalled:
            return self._signalled
        if self._file is not None and await asyncio.to_thread(os.path.lexists, self._file):  # a disk may hang
            return f"{self._file} is there"
        if self._notice.command and time.monotonic() >= self._ask_at:
            self._by_command = f"`{shlex.join(self._notice.command)}` exits with 0" if await self._ask() else ""
            self._ask_at = time.monotonic() + _ASK_S
        return self._by_command

    async def _ask(self) -> bool:
        """Run the spec's command and return whether it gives notice, which it does with exit code 0.

        Return False, with the reason in `problem`, if the command cannot be run or does not end within its time limit.
        """
        ended: asyncio.Future[Death] = asyncio.get_running_loop().create_future()
        self.problem = ""
        self._reaper.expect_birth()
        try:
            pid = spawn(self._notice.command, self._environment, self._workdir, Path(os.devnull))
            self._reaper.watch(pid, ended.set_result)
        except OSError as error:
            self.problem = said_by_the_system(error)
            return False
        finally:
            self._reaper.born()
        try:
            death = await asyncio.wait_for(asyncio.shield(ended), _LIMIT_S)
        except TimeoutError:
            self.problem = f"it did not end within {_LIMIT_S:g} s"
            with suppress(ProcessLookupError):
                os.killpg(pid, signal.SIGKILL)
            return False
        if death.code in _NOT_RUN:
            self.problem = f"it exits with {death.code}: a program in it cannot be run"
        return death.code == 0
