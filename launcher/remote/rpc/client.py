"""The client of a launcher program on another machine: of `launch _far` on a login node, or of a server on a pool's
host. Requests and answers pass over the program's stdin and stdout.
"""

import contextlib
import itertools
import math
import shlex
import time
from collections.abc import Collection, Iterable, Iterator
from typing import Protocol, TypeVar, cast

from launcher.decoding import OutOfBounds, within_bounds
from launcher.errors import Exit, LaunchError, Unreachable
from launcher.remote.connect import Line, connect
from launcher.remote.failures import Broken, Silent
from launcher.remote.openssh import SshCommand, hint
from launcher.remote.program import LEAVE_S
from launcher.remote.rpc.wire import WIRE, Garbled, Incoming, OtherVersion, Reply, decoded, encoded
from launcher.remote.running import ClosedAtTheEnd, Running
from launcher.remote.target import CONNECT_TIMEOUT_S, target_of
from launcher.spec.model import SshHost
from launcher.states import VERSION

__all__ = ["Broken", "RemoteLaunch", "RpcClient", "Silent", "remote_error", "remote_program"]

GREETING_S = 30.0  # Python may start slowly from a login node's file system
_TAKEN_S = 600.0
_PIECE = 1 << 20
_LONGEST_REPLY = 32 << 20
_PIECE_S = 60.0  # for a mebibyte behind an answer: many hosts at once may share a slow line
_SAID_LINES = 8  # of the last output of ssh or a shell there
_LONGEST_WORD, _MOST_LINES = 2000, 200  # of output that is no answer
_NOT_FOUND, _NOT_EXECUTABLE = 127, 126
# Python's errors for a version that has its modules elsewhere: one for a program, one for its package
_NO_MODULE = ("No module named launcher", "No module named 'launcher")

T = TypeVar("T")


class RemoteProgram(Protocol):
    """The `launch` program on a cluster's login node, and how to log in there."""

    @property
    def cluster(self) -> str:
        """Return the name of the cluster in the user's clusters file."""

    @property
    def login(self) -> str:
        """Return the login for ssh, such as user@host."""

    @property
    def launch(self) -> str:
        """Return the path of the program on the other machine."""

    @property
    def transport(self) -> str:
        """Return the name of the transport: openssh or paramiko."""


def remote_program(path: str) -> str:
    """Return the program's path quoted for any shell that the user may have on the other machine, such that a leading
    `~` is expanded.
    """
    if path == "~" or path.startswith("~/"):
        return f'"$HOME"{_quoted(path[1:])}'
    return _quoted(path)


def _quoted(text: str) -> str:
    """Return the text as one word of a shell's command line, quoted where needed. A backslash is escaped outside of
    quotes, because fish would interpret it inside them.
    """
    return r"\\".join(shlex.quote(part) if part else "" for part in text.split("\\"))


class RpcClient(ClosedAtTheEnd):
    """The client of a program on another machine, over its stdin and stdout."""

    def __init__(self, running: Running, taken_s: float = _TAKEN_S) -> None:
        """Use a running program; `taken_s` limits how long it may take to accept a piece of input."""
        self._running, self._taken_s = running, taken_s
        self._greeted = False
        self._waits = False  # for an answer
        self._left = 0  # bytes that are still to follow the last one
        self._incoming = Incoming(self._read)

    @property
    def is_idle(self) -> bool:
        """Return whether every request has been answered, so that the next output belongs to the next request."""
        return not self._waits and not self._left

    def greet(self, deadline: float | None = None) -> None:
        """Wait for the program's greeting until the deadline (by `time.monotonic`; None: 30 seconds from now). Raise
        OtherVersion if it is of another version, and another LaunchError if none comes or it is malformed.
        """
        if self._greeted:
            return
        try:
            there = self._incoming.greeting(time.monotonic() + GREETING_S if deadline is None else deadline)
        except (EOFError, Silent, Garbled) as error:
            raise self._no_greeting(error) from None
        if there.wire != WIRE:
            raise self._other_version(there.launch[:_LONGEST_WORD])
        self._greeted = True

    def send(self, request: object, contents: Iterable[bytes] = ()) -> None:
        """Send a request, followed by the bytes in `contents`.

        Raise Silent if the program does not accept a piece of them within the time limit of this client, and
        UnicodeEncodeError if a text in the request is not valid Unicode. If the connection has ended, return: the next
        `receive` raises that.
        """
        self._waits = True
        for piece in itertools.chain([encoded(request)], contents):
            if not self._running.feed(piece, self._taken_s):
                return

    def receive(self, kind: type[T], deadline: float | None = None, *, most: int = 0) -> T:
        """Wait for the answer to the last request and return it, decoded as `kind`; at most `most` bytes may follow the
        answer.

        Raise the error that the program reports, Unreachable if the connection ends, Silent at the deadline (by
        `time.monotonic`, None for none), or Garbled for a malformed answer. If the greeting has not come yet, wait
        for that first; raise OtherVersion if it is of another version.
        """
        self.greet(deadline)
        try:
            reply = decoded(self._incoming.line(deadline, _LONGEST_REPLY), Reply)
            value = None if reply.error else within_bounds(decoded(bytes(reply.value), kind), 64 << 10, 10_000)
        except (EOFError, Silent) as error:
            raise self._broken(error) from None
        except (Garbled, OutOfBounds) as error:
            raise self._garbled(str(error)[:_LONGEST_WORD]) from error
        if reply.follows > most:
            raise self._garbled(f"expected at most {most} bytes behind the answer, got {reply.follows}")
        self._waits, self._left = False, reply.follows
        if reply.error:
            raise self._with_host(remote_error(reply.error, reply.exit_code))
        return cast("T", value)

    def ask(self, request: object, kind: type[T], *, contents: Iterable[bytes] = (), timeout_s: float) -> T:
        """Send a request, followed by the bytes in `contents`, and return its answer, decoded as `kind`. Raise the
        error that the program reports, Silent after `timeout_s` without an answer, Unreachable if the connection ends,
        or Garbled for a malformed answer.
        """
        return self.ask_with_bytes(request, kind, 0, contents=contents, timeout_s=timeout_s)[0]

    def ask_with_bytes(
        self, request: object, kind: type[T], most: int, *, contents: Iterable[bytes] = (), timeout_s: float
    ) -> tuple[T, bytes]:
        """Send a request, followed by the bytes in `contents`; return (its answer, decoded as `kind`, the bytes that
        follow the answer, at most `most`).

        The answer may take `timeout_s`, and each mebibyte of the bytes a minute. Raise the error that the program
        reports, Silent after that time, Unreachable if the connection ends, or Garbled for a malformed answer.
        """
        self.send(request, contents)
        answer = self.receive(kind, time.monotonic() + timeout_s, most=most)
        return answer, b"".join(self.pieces(_PIECE_S))

    def pieces(self, limit_s: float) -> Iterator[bytes]:
        """Yield the bytes that follow the last answer as they arrive; raise Unreachable if the connection ends, or a
        mebibyte takes longer than `limit_s`.
        """
        while self._left:
            until, wanted = time.monotonic() + limit_s, min(self._left, _PIECE)
            while wanted:
                try:
                    piece = self._incoming.some(wanted, until)
                except (EOFError, Silent) as error:
                    raise self._broken(error) from None
                wanted -= len(piece)
                self._left -= len(piece)
                yield piece

    def close(self) -> None:
        """Close the connection; the program on the other machine then ends by itself."""
        self._running.close()

    def _read(self, deadline: float | None, most: int) -> bytes:
        """Return output of the program as soon as it has printed any, at most `most` bytes, or b"" at its end; raise
        Silent at the deadline.
        """
        return self._running.read(most, math.inf if deadline is None else max(0.0, deadline - time.monotonic()))

    def _no_greeting(self, error: EOFError | Silent | Garbled) -> LaunchError:
        """Return the error for a program that sent no valid greeting."""
        if isinstance(error, OtherVersion):
            return OtherVersion(f"{self._running.who}: {error.lines[0]}")
        if isinstance(error, EOFError) and any(
            sign in "".join(self._running.last_error_lines()) for sign in _NO_MODULE
        ):
            return OtherVersion(f"{self._running.who}: another version of launch is there, without what {VERSION} asks")
        return self._garbled(error.lines[0]) if isinstance(error, Garbled) else self._broken(error)

    def _broken(self, error: EOFError | Silent) -> Unreachable:
        """Return the error for a connection that ended, with the last line that the other side wrote to stderr, or for
        an answer that did not come in time.
        """
        if isinstance(error, Silent):
            return error
        return Unreachable(f"{self._running.who}: {''.join(self._running.last_error_lines()).strip() or 'it hung up'}")

    def _garbled(self, what: str) -> Garbled:
        """Return the error for a malformed message; `what` says what is wrong."""
        return Garbled(f"{self._running.who}: {what}")

    def _other_version(self, there: str) -> LaunchError:
        """Return the error that the program there is of another version of the launcher, `there`, than this process."""
        return OtherVersion(f"{self._running.who}: launch {there} is there, and {VERSION} here")

    def _with_host(self, error: LaunchError) -> LaunchError:
        """Return an error that the program on the other machine reported, with its host's name added."""
        error.lines = (f"{self._running.who}: {error.lines[0]}", *error.lines[1:])
        return error


class RemoteLaunch(RpcClient):
    """The client of `launch _far`, the program on a login node that carries out requests there."""

    def __init__(self, login: RemoteProgram, *, without: Collection[str] = (), compress: bool = False) -> None:
        """Connect to `launch` at a login node.

        `without` names variables that must not reach ssh; with `compress` the connection is compressed.
        """
        self.login = login
        self._way, running = started(login, "_far", without, compress=compress)
        super().__init__(running)

    def close(self) -> None:
        """Close the connection; the program on the login node ends by itself."""
        super().close()
        if self._way is not None:
            self._way.close()

    def _with_host(self, error: LaunchError) -> LaunchError:
        """Return an error that the program reported, with the login node's name added."""
        return said_by(_who(self.login), error)

    def _no_greeting(self, error: EOFError | Silent | Garbled) -> LaunchError:
        """Return the error for a program that sent no valid greeting, with what ssh printed."""
        if isinstance(error, Garbled):
            return Unreachable(f"{_who(self.login)}: expected launch there to answer, got something else: {error}")
        words = self._running.last_error_lines(_SAID_LINES)
        if isinstance(error, Silent):
            return Silent(f"{_who(self.login)} does not answer", *words)
        code = self._running.code(LEAVE_S)
        if code in (_NOT_FOUND, _NOT_EXECUTABLE):
            more = f"hint: `launch: ~/path/to/launch` of {self.login.cluster} in the clusters file says where it is"
            return Unreachable(f"{_who(self.login)}: there is no `{self.login.launch}`", *words, more)
        if code == Exit.BAD_INPUT:
            return self._other_version(remote_version(self.login))
        if code == -1 and not words:
            return Broken(f"{_who(self.login)} cannot be reached: the connection ended before launch there answered")
        if code == -1:
            return Unreachable(f"{_who(self.login)} cannot be reached", *words, *hint(self.login.login, words))
        return Broken(f"{_who(self.login)}: the connection ended before launch there answered ({code})", *words)

    def _broken(self, error: EOFError | Silent) -> Unreachable:
        """Return the error for a connection that ended, or for an answer that did not come in time."""
        if isinstance(error, Silent):
            return Silent(f"{_who(self.login)} does not answer any more")
        return Broken(f"{_who(self.login)}: the connection broke", *self._running.last_error_lines())

    def _other_version(self, there: str) -> Unreachable:
        """Return the error that version `there` of the launcher is installed on the login node."""
        return Unreachable(
            f"{_who(self.login)}: launch {there} there, {VERSION} here: they do not understand each other",
            f"hint: install version {VERSION} on {self.login.login}, or the one there here: `launch help install`",
        )


def started(
    login: RemoteProgram, word: str, without: Collection[str] = (), *, compress: bool = False
) -> tuple[Line | None, Running]:
    """Start `launch` on the login node with the argument `word`, such as `--version`; return (a connection to close
    once the program has ended, the program).

    The connection is None for the openssh transport, where ssh opens one for this program alone. Variables named in
    `without` are kept from ssh. With `compress` the connection is compressed, by openssh only. If the login node cannot
    be reached or logged in to, paramiko raises an Unreachable; with openssh nothing is raised, and the program returned
    is one that ends at once.
    """
    line = f"{remote_program(login.launch)} {word}"
    if login.transport == "paramiko":
        user, _, host = login.login.rpartition("@")
        way = connect(target_of(SshHost(host, user=user or None)))
        return way, way.start(line)
    options = ("Compression=yes",) if compress else ()
    command = SshCommand(login.login, options, without=frozenset(without))
    return None, Running(_who(login), command.start(line))


def remote_error(lines: Collection[str], code: int) -> LaunchError:
    """Return an error that a program on another machine reported, as lines and exit code, as if it had occurred on this
    machine.
    """
    error = LaunchError(*(line[:_LONGEST_WORD] for line in [*lines][:_MOST_LINES]))
    error.exit_code = Exit(code) if code in set(Exit) - {Exit.OK} else Exit.INTERNAL
    return error


def said_by(who: str, error: LaunchError) -> LaunchError:
    """Return the error with a line that names `who`, the machine from which it came."""
    error.lines = (*error.lines, f"  said by {who}")
    return error


def remote_version(login: RemoteProgram) -> str:
    """Return the version that `launch --version` prints on the login node, or `?` if it cannot be run there."""
    with contextlib.suppress(LaunchError):
        way, running = started(login, "--version")
        with running, way or contextlib.nullcontext():
            done = running.finish(CONNECT_TIMEOUT_S)
        words = done.out.decode(errors="replace").split()
        if done.code == 0 and words:
            return words[-1][:40]
    return "?"


def _who(login: RemoteProgram) -> str:
    """Return the login node's name for messages."""
    return f"login node {login.login} of {login.cluster}"
