"""The agent's end of the zygote, a process that has imported torch and forks ranks: start it and request forks from it.
The other end is zygote.py. Its standby is a fork of it with all imports done, which replaces it when it dies, and which
can become the next agent when the agent dies.
"""

import asyncio
import contextlib
import json
import os
import socket
import subprocess
from collections.abc import Callable, Mapping, MutableMapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import msgspec

from launcher.errors import LaunchError
from launcher.node import ZYGOTE
from launcher.node.ranks.reaper import Death, Reaper

_LINE_BYTES = 1 << 20
_Pid = Annotated[int, msgspec.Meta(ge=1, le=1 << 22)]

Order = dict[str, Any]
TellDeath = Callable[[Death], None]


class ForkRefused(LaunchError):
    """Raised when the zygote will not or cannot fork, so that the rank has to be started in a new interpreter."""


class ZygoteGone(ForkRefused):
    """Raised when the zygote has ended."""


def spawn(
    argv: Sequence[str],
    environment: Mapping[str, str],
    cwd: Path,
    log: Path,
    pass_fds: Sequence[int] = (),
    umask: int | None = None,
) -> int:
    """Start the command line `argv` as a child in a session of its own, with exactly the variables `environment`, in
    the folder `cwd` and with its output in the file `log`, and return its pid. The agent's reaper, not the caller, has
    to wait for its end.

    The child inherits the descriptors `pass_fds`; None for `umask` leaves that as it is.
    """
    out = os.open(log, os.O_CREAT | os.O_WRONLY | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        child = subprocess.Popen(
            argv,
            env=dict(environment),
            cwd=cwd,
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=out,
            pass_fds=pass_fds,
            start_new_session=True,
            umask=-1 if umask is None else umask,
        )
    finally:
        os.close(out)
    child.returncode = 0  # else subprocess itself would wait for it one day, and take the death from the reaper
    return child.pid


@dataclass(frozen=True, slots=True)
class OfferedZygote:
    """A zygote whose imports are complete, started before this process became the agent: the socket to it, and its
    interpreter.
    """

    fd: int
    python: str

    @classmethod
    def taken_from(cls, environ: MutableMapping[str, str]) -> "OfferedZygote | None":
        """Return the zygote that was left for this agent in a variable of `environ`, and remove the variable; return
        None if there is none.
        """
        words = environ.pop("LAUNCH_ZYGOTE", "").split(" ", 1)
        if len(words) != 2:
            return None
        os.set_inheritable(int(words[0]), False)
        return cls(int(words[0]), words[1])


@dataclass(frozen=True, slots=True)
class _PendingFork:
    """A requested fork without an answer yet: the future for the rank's pid, and the callback for its death."""

    answer: "asyncio.Future[int]"
    tell: TellDeath


class ZygoteLink:
    """A connection to one zygote; `ready` is set once its imports are complete, `gone` once it has ended.

    `standby` is the connection to the zygote's standby, its fork with all imports done; None if it has none.
    """

    def __init__(self, reaper: Reaper, gate: int | None = None) -> None:
        """Create a link that is not connected yet.

        The zygote's standby waits at the file descriptor `gate` to become the next agent (`stand_by` in zygote.py).
        """
        self._reaper, self._gate = reaper, gate
        self._pending: dict[int, _PendingFork] = {}
        self._number = 0
        self._socket: socket.socket | None = None
        self._writer: asyncio.StreamWriter | None = None
        self._reading: asyncio.Task[None] | None = None
        self.pid = 0
        self.standby: ZygoteLink | None = None
        self.ready = asyncio.Event()
        self.gone = asyncio.Event()
        self.began = False  # it is Python, of a version that can run it
        self.death: asyncio.Future[Death] = asyncio.get_running_loop().create_future()

    async def start(
        self, python: str, environment: Mapping[str, str], cwd: Path, preload: Sequence[str], log: Path
    ) -> None:
        """Start a zygote in the interpreter `python`, with exactly the variables `environment`, in the folder `cwd` and
        with its output in `log`, and send it the names of the modules in `preload`; `ready` is set once it has imported
        them.
        """
        ours, theirs = socket.socketpair()
        with theirs:
            argv = [python, str(ZYGOTE), "serve", str(theirs.fileno()), str(os.getpid())]
            self.pid = spawn(argv, environment, cwd, log, pass_fds=[theirs.fileno()])
        self._reaper.watch(self.pid, self._died)
        await self.listen(ours)
        await self.preload(preload)

    async def preload(self, modules: Sequence[str], home: Order | None = None) -> None:
        """Send the zygote its first message, the names of the modules to import, without waiting for the imports. To a
        standby, which has imported them, the message is the order to become the zygote.

        `home` is for a zygote that was started before this agent: the environment, folder and log of this agent, which
        the zygote is to use from now on. It is None for a zygote that this agent started. If there are modules to
        import, the zygote gets a standby of its own, and this method opens the connection to it.
        """
        words: Order = {"op": "preload", "modules": list(modules)} | ({"home": home} if home is not None else {})
        if not modules or self._socket is None:
            self._say(words)  # another one starts as quickly
            return
        self.standby = ZygoteLink(self._reaper, self._gate)
        gate = () if self._gate is None else (self._gate,)
        ours, theirs = socket.socketpair()
        with theirs:
            await self.standby.listen(ours)
            line, sent = _line(words), 0
            with contextlib.suppress(OSError):  # it has ended: its line says so too
                sent = socket.send_fds(self._socket, [line], [theirs.fileno(), *gate])
            if self._writer is not None and 0 < sent < len(line):
                self._writer.write(line[sent:])

    async def listen(self, ours: socket.socket) -> None:
        """Begin to read messages from the zygote over the socket `ours`, in a task of its own."""
        self._socket = ours
        reader, self._writer = await asyncio.open_connection(sock=ours, limit=_LINE_BYTES)
        self._reading = asyncio.create_task(self._read(reader))

    async def fork(self, order: Order, tell: TellDeath) -> int:
        """Have the zygote fork the rank that `order` describes, and return its pid; `tell` is called once the rank has
        ended.

        Raise ForkRefused, or ZygoteGone if the zygote has ended. If the caller is cancelled, the rank is forked all the
        same, and `tell` is called at its end; `settle` waits for the fork.
        """
        if self.gone.is_set():
            raise ZygoteGone("the zygote is gone")
        self._number += 1
        answer: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self._reaper.expect_birth()
        self._pending[self._number] = _PendingFork(answer, tell)
        self._say({"op": "fork", "id": self._number, "order": order})
        # Shielded: if the caller is cancelled, the fork still happens, and `settle` must wait for it.
        return await asyncio.shield(answer)

    async def settle(self) -> None:
        """Return once every requested fork has been answered, or has failed because the zygote ended."""
        while self._pending:
            await asyncio.wait([fork.answer for fork in self._pending.values()])

    async def close(self) -> None:
        """Close the connections to the zygote and to its standby, upon which both end themselves; this does not wait
        for their end.
        """
        if self.standby is not None:
            await self.standby.close()
        if self._writer is not None:
            self._writer.close()
        if self._reading is not None:
            await asyncio.wait([self._reading])

    def _say(self, words: Order) -> None:
        """Send a message, unless the connection is closed."""
        if self._writer is not None and not self._writer.is_closing():
            self._writer.write(_line(words))

    def _died(self, death: Death) -> None:
        """Record the zygote's death, and end the connection once all that the zygote has sent is read.

        Pending forks fail only after that, because what is still unread may report one of them: such a rank lives on.
        """
        if not self.death.done():
            self.death.set_result(death)
        if self._socket is None or self._reading is None:
            self._lose()
            return
        with contextlib.suppress(OSError):  # it is closed: all was read
            self._socket.shutdown(socket.SHUT_RD)

    def _lose(self) -> None:
        """Raise ZygoteGone for all pending forks, and set `gone`."""
        self.gone.set()
        for fork in self._pending.values():
            if not fork.answer.done():
                fork.answer.set_exception(ZygoteGone("the zygote is gone"))
            self._reaper.born()
        self._pending.clear()

    async def _read(self, reader: asyncio.StreamReader) -> None:
        """Handle the zygote's messages until the connection ends or one is invalid. Then close the connection, set
        `gone`, and let every request that waits for a fork fail.
        """
        with contextlib.suppress(OSError, ValueError, RecursionError):  # its wire is broken
            while line := await reader.readline():
                self._handle(_words.decode(line))
        if self._writer is not None:
            self._writer.close()
        self._lose()

    def _handle(self, message: "_Message") -> None:
        """Handle a message of the zygote: set what it reports here, or complete the fork that it answers. Raise
        ValueError if it answers a fork that was not requested.
        """
        match message:
            case _Began():
                self.began = True
            case _StandsBy():
                self.pid = message.pid
                self._reaper.watch(message.pid, self._died)
            case _Ready():
                self.ready.set()
            case _Forked():
                fork = self._pop_pending(message.id)
                self._reaper.watch(message.pid, fork.tell)
                self._reaper.born()
                if not fork.answer.done():
                    fork.answer.set_result(message.pid)
            case _Refused():
                fork = self._pop_pending(message.id)
                self._reaper.born()
                if not fork.answer.done():
                    fork.answer.set_exception(ForkRefused(message.reason))
            case _Error():
                pass  # it did not understand us: then it forks nothing either

    def _pop_pending(self, number: int) -> _PendingFork:
        """Remove and return the pending fork with this number; raise ValueError if there is none."""
        if number not in self._pending:
            raise ValueError(f"it answers {number}, which was not requested")
        return self._pending.pop(number)


class _Began(msgspec.Struct, tag="began", tag_field="op"):
    """The zygote's message that it is running and about to import modules."""


class _Ready(msgspec.Struct, tag="ready", tag_field="op"):
    """The zygote's message that it has imported everything."""


class _Forked(msgspec.Struct, tag="forked", tag_field="op"):
    """The zygote's message that fork request `id` has produced the rank with this pid."""

    id: int
    pid: _Pid


class _Refused(msgspec.Struct, tag="refused", tag_field="op"):
    """The zygote's message that it did not fork for request `id`, with the reason."""

    id: int
    reason: str


class _Error(msgspec.Struct, tag="error", tag_field="op"):
    """The zygote's message that it could not understand the last message."""


class _StandsBy(msgspec.Struct, tag="standby", tag_field="op"):
    """The zygote's message that it has forked a standby with this pid, which can replace it."""

    pid: _Pid


_Message = _Began | _Ready | _Forked | _Refused | _Error | _StandsBy
_words: msgspec.json.Decoder[_Message] = msgspec.json.Decoder(_Message)


def _line(words: Order) -> bytes:
    """Return a message as a line of JSON."""
    return json.dumps(words).encode() + b"\n"
