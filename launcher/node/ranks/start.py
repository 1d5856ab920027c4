"""Start one rank process: forked from the zygote, a process that has imported torch, or in a new interpreter if that is
impossible. DUMP_SIGNAL is the signal upon which a rank writes its Python stacks into its log.
"""

import contextlib
import json
import os
import signal
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Protocol

from launcher.node import ZYGOTE
from launcher.node.ranks.reaper import Reaper
from launcher.node.ranks.zygote_link import ForkRefused, Order, TellDeath, ZygoteGone, ZygoteLink, spawn
from launcher.plan.model import RankCommand
from launcher.run.layout import debug_socket
from launcher.run.processes import users_limits

# A real-time signal that nothing else here uses; faulthandler answers it with all Python stacks.
DUMP_SIGNAL = signal.SIGRTMIN + 8


class Starter(Protocol):
    """A way to start ranks on this node, one at a time: by a fork of the zygote, or as a new interpreter."""

    @property
    def dumps_stacks(self) -> bool:
        """Return whether ranks write their stacks when they receive DUMP_SIGNAL."""

    async def start(self, environment: Mapping[str, str], log: Path, progress: str, tell: TellDeath) -> int:
        """Start one rank with these variables on top of the node's and return its pid.

        Its output goes to `log`, its reports to the FIFO at `progress`, and `tell` is called with its death.
        """


class OrdinaryStarter:
    """A starter that runs each rank in a new interpreter, which becomes the user's command if the program is one."""

    def __init__(
        self,
        entry: RankCommand,
        node_environment: Mapping[str, str],
        workdir: Path,
        code: Path,
        reaper: Reaper,
        umask: int | None = None,
    ):
        """Take the rank's command and environment; ranks get `umask`, or this process's umask if it is None."""
        self._entry = entry
        self._environment = node_environment
        self._workdir = workdir
        self._code = code
        self._reaper = reaper
        self._umask = umask

    @property
    def dumps_stacks(self) -> bool:
        """Return whether ranks write their stacks when they receive DUMP_SIGNAL, as all do but commands that are not
        Python.
        """
        return self._entry.kind != "command"

    def order(self, environment: Mapping[str, str], log: Path, progress: str) -> Order:
        """Return the order, in the form that zygote.py reads, by which a process becomes the rank with these variables,
        with its output in `log` and its reports on the FIFO at `progress`.
        """
        entry = self._entry
        target = str(self._code / entry.target) if entry.kind == "script" else entry.target
        return {
            "kind": entry.kind,
            "target": target,
            "args": list(entry.args),
            "cwd": str(self._workdir),
            "env": dict(environment),
            "unset": [],
            "stdin": os.devnull,
            "log": str(log),
            "progress": progress,
            "debug": str(debug_socket(Path(progress))),
            "dump_signal": int(DUMP_SIGNAL),
            "limits": users_limits(),
            "umask": self._umask,
        }

    async def start(self, environment: Mapping[str, str], log: Path, progress: str, tell: TellDeath) -> int:
        """Start one rank with these variables in a new interpreter and return its pid.

        Its output goes to `log`, its reports to the FIFO at `progress`, and `tell` is called with its death.
        """
        read, write = os.pipe()
        try:
            argv = [self._entry.python, str(ZYGOTE), "run", str(read), str(os.getpid())]
            pid = spawn(argv, self._environment, self._workdir, log, pass_fds=[read])
        except OSError:
            os.close(write)
            raise
        finally:
            os.close(read)
        self._reaper.watch(pid, tell)
        _say(write, json.dumps(self.order(environment, log, progress)).encode() + b"\n")
        return pid


class ZygoteStarter:
    """A starter that forks ranks from the zygote.

    If the zygote refuses, the reason goes to the rank's log and a new interpreter is started. If the zygote ends before
    it answers, for instance killed together with ranks, the zygote that `renewed` returns forks the rank.
    """

    dumps_stacks = True  # ranks write their stacks when they receive DUMP_SIGNAL

    def __init__(
        self,
        link: ZygoteLink,
        ordinary: OrdinaryStarter,
        renewed: Callable[[], Awaitable[ZygoteLink | None]] | None = None,
    ) -> None:
        self._link, self._renewed = link, renewed
        self._ordinary = ordinary

    async def start(self, environment: Mapping[str, str], log: Path, progress: str, tell: TellDeath) -> int:
        """Fork one rank with these variables from the zygote, or start a new interpreter if the zygote refuses, and
        return its pid.

        Its output goes to `log`, its reports to the FIFO at `progress`, and `tell` is called with its death.
        """
        order = self._ordinary.order(environment, log, progress)
        try:
            try:
                return await self._link.fork(order, tell)
            except ZygoteGone:
                link = await self._renewed() if self._renewed is not None else None
                if link is None:
                    raise
                return await link.fork(order, tell)
        except ForkRefused as refusal:
            _note(log, f"launch: no fork from the zygote: {refusal}; starting a new interpreter")
        return await self._ordinary.start(environment, log, progress, tell)


def _say(write: int, line: bytes) -> None:
    """Write the line to the pipe `write` and close it; do nothing if the process that reads it has died."""
    with contextlib.suppress(BrokenPipeError), open(write, "wb") as pipe:  # it died before it read: the reaper tells
        pipe.write(line)


def _note(log: Path, text: str) -> None:
    """Append a line to the log."""
    fd = os.open(log, os.O_CREAT | os.O_WRONLY | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        os.write(fd, text.encode() + b"\n")
    finally:
        os.close(fd)
