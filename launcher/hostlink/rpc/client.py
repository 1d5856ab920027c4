"""`launch _far` on another machine, and what is asked of it over its stdin and stdout."""

import contextlib
import itertools
import math
import shlex
import time
from collections.abc import Collection, Iterable
from types import TracebackType
from typing import Protocol, Self, TypeVar

from launcher.errors import Exit, LaunchError, Unreachable
from launcher.hostlink.connect import Line, connect
from launcher.hostlink.failures import Broken, Silent
from launcher.hostlink.openssh import CONNECT_S, SshCommand, hint
from launcher.hostlink.rpc.wire import WIRE, Garbled, Incoming, Reply, decoded, encoded
from launcher.hostlink.running import Running
from launcher.hostlink.target import target_of
from launcher.spec.model import SshHost
from launcher.words import VERSION

__all__ = ["Broken", "FarLaunch", "Silent", "far_error", "far_program"]

GREETING_S = 30.0  # Python may start slowly from a login node's file system
_LEAVE_S = 2.0
_TAKEN_S = 600.0  # for a piece of what is sent to be taken
_NOT_FOUND, _NOT_EXECUTABLE = 127, 126

T = TypeVar("T")


class FarProgram(Protocol):
    """Where to find `launch` on another machine."""

    @property
    def cluster(self) -> str:
        """As the user calls it."""

    @property
    def login(self) -> str:
        """For ssh."""

    @property
    def launch(self) -> str:
        """The program there."""

    @property
    def transport(self) -> str:
        """openssh or paramiko."""


def far_program(path: str) -> str:
    """A program's path for whatever shell the user has there; `~` is theirs to fill in."""
    if path == "~" or path.startswith("~/"):
        return f'"$HOME"{shlex.quote(path[1:]) if path[1:] else ""}'
    return shlex.quote(path)


class FarLaunch:
    """`launch _far` on a login node, and what is asked of it."""

    def __init__(self, login: FarProgram, *, without: Collection[str] = (), compress: bool = False) -> None:
        """`without`: variables that must not reach ssh."""
        self.login = login
        self._greeted = False
        self._way, self._running = _started(login, "_far", without, compress=compress)
        self._incoming = Incoming(self._read)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def greet(self, deadline: float | None = None) -> None:
        """Wait until launch is there and understands us."""
        if self._greeted:
            return
        try:
            there = self._incoming.greeting(time.monotonic() + GREETING_S if deadline is None else deadline)
        except (EOFError, Silent, Garbled) as error:
            raise self._no_greeting(error) from None
        if there.wire != WIRE:
            raise _other_version(self.login, there.launch)
        self._greeted = True

    def send(self, request: object, contents: Iterable[bytes] = ()) -> None:
        """Say this; what goes wrong with the connection is told by `receive`."""
        for piece in itertools.chain([encoded(request)], contents):
            if not self._running.feed(piece, _TAKEN_S):
                return

    def receive(self, kind: type[T], deadline: float | None = None) -> T:
        """The answer to what was said. Raises what the other side raised, Broken or Silent."""
        self.greet(deadline)
        try:
            reply = decoded(self._incoming.line(deadline), Reply)
        except (EOFError, Silent) as error:
            raise self._broken(error) from None
        if reply.error:
            raise far_error(reply.error, reply.exit_code)
        return decoded(bytes(reply.value), kind)

    def ask(self, request: object, kind: type[T], *, contents: Iterable[bytes] = (), timeout_s: float) -> T:
        self.greet()
        self.send(request, contents)
        return self.receive(kind, time.monotonic() + timeout_s)

    def close(self) -> None:
        """Nothing of it is left on return; the other side ends by itself."""
        self._running.close()
        if self._way is not None:
            self._way.close()

    def _read(self, deadline: float | None, most: int) -> bytes:
        return self._running.read(most, math.inf if deadline is None else max(0.0, deadline - time.monotonic()))

    def _no_greeting(self, error: Exception) -> LaunchError:
        if isinstance(error, Garbled):
            return Unreachable(f"{_who(self.login)}: expected launch there to answer, got something else: {error}")
        words = self._running.last_words()
        if isinstance(error, Silent):
            return Silent(f"{_who(self.login)} does not answer", *words)
        code = self._running.code(_LEAVE_S)
        if code in (_NOT_FOUND, _NOT_EXECUTABLE):
            more = f"hint: `launch: ~/path/to/launch` of {self.login.cluster} in the clusters file says where it is"
            return Unreachable(f"{_who(self.login)}: there is no `{self.login.launch}`", *words, more)
        if code == Exit.BAD_INPUT:
            return _other_version(self.login, far_version(self.login))
        if code == -1 and not words:
            return Broken(f"{_who(self.login)} cannot be reached: the connection ended before launch there answered")
        if code == -1:
            return Unreachable(f"{_who(self.login)} cannot be reached", *words, *hint(self.login.login, words))
        return Broken(f"{_who(self.login)}: the connection ended before launch there answered ({code})", *words)

    def _broken(self, error: Exception) -> Unreachable:
        if isinstance(error, Silent):
            return Silent(f"{_who(self.login)} does not answer any more")
        return Broken(f"{_who(self.login)}: the connection broke", *self._running.last_words())


def _started(
    login: FarProgram, word: str, without: Collection[str] = (), *, compress: bool = False
) -> tuple[Line | None, Running]:
    """The program there with this word, and what has to be closed after it: ssh makes a connection for it alone."""
    line = f"{far_program(login.launch)} {word}"
    if login.transport == "paramiko":
        user, _, host = login.login.rpartition("@")
        way = connect(target_of(SshHost(host, user=user or None)))
        return way, way.start(line)
    options = ("Compression=yes",) if compress else ()
    command = SshCommand(login.login, options, without=frozenset(without))
    return None, Running(_who(login), command.start(line))


def far_error(lines: Collection[str], code: int) -> LaunchError:
    """What went wrong there, as if it had gone wrong here."""
    error = LaunchError(*lines)
    error.exit_code = Exit(code) if code in set(Exit) else Exit.INTERNAL
    return error


def far_version(login: FarProgram) -> str:
    """What `launch --version` says there; for a message."""
    with contextlib.suppress(LaunchError):
        way, running = _started(login, "--version")
        with running, way or contextlib.nullcontext():
            done = running.finish(CONNECT_S)
        words = done.out.decode(errors="replace").split()
        if done.code == 0 and words:
            return words[-1][:40]
    return "?"


def _other_version(login: FarProgram, there: str) -> Unreachable:
    return Unreachable(
        f"{_who(login)}: launch {there} there, {VERSION} here: they do not understand each other",
        f"hint: install launch {VERSION} on {login.login}, or the one there here",
    )


def _who(login: FarProgram) -> str:
    return f"login node {login.login} of {login.cluster}"
