"""One connection to a login node: the user's own ssh program, so that its configuration, keys and known hosts hold."""

import contextlib
import os
import shlex
import signal
import subprocess
import tempfile
import time
from collections.abc import Collection, Iterable
from types import TracebackType
from typing import IO, Any, Protocol, Self, TypeVar

from launcher.errors import Exit, LaunchError, Unreachable
from launcher.hostlink.rpc.wire import WIRE, Confused, Incoming, Reply, decoded, encoded
from launcher.words import VERSION

GREETING_S = 30.0  # Python may start slowly from a login node's file system
_CONNECT_S = 10
_LEAVE_S = 2.0
_SSH_FAILED, _NOT_FOUND, _NOT_EXECUTABLE = 255, 127, 126
_TAIL_BYTES = 4096

T = TypeVar("T")


# Never asks, never forwards, never stays behind; whatever the user says of hosts, keys and known hosts holds.
_OPTIONS = (
    "BatchMode=yes",
    "ForwardAgent=no",
    "ForwardX11=no",
    "ClearAllForwardings=yes",
    "ControlMaster=no",
    "RemoteCommand=none",
    "RequestTTY=no",
    "LogLevel=ERROR",  # no banners: what it says is why it failed
    f"ConnectTimeout={_CONNECT_S}",
    "ServerAliveInterval=5",
    "ServerAliveCountMax=3",
)
_HINTS = {
    "Host key verification failed": "`ssh {login}` by hand shows the host's key and asks whether it is the right one",
    "Permission denied": "`ssh {login} true` must work without a password: by a key, an agent or an open master",
    "Could not resolve hostname": "check `login:` in the clusters file, and HostName in the SSH configuration",
    "Too many authentication failures": "name the key by IdentityFile in the SSH configuration",
}


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


class Broken(Unreachable):
    """The connection was there and ended before the answer came: what was asked may have happened."""


class Silent(Unreachable):
    """The connection is there and the answer did not come in time: what was asked may still happen."""


def command(login: FarProgram, argv: str, *, compress: bool = False) -> list[str]:
    """How ssh is called to have a shell on the login node run this line."""
    config = os.environ.get("LAUNCH_SSH_CONFIG")
    options = [*_OPTIONS, *(("Compression=yes",) if compress else ())]
    return [
        "ssh",
        *(("-F", config) if config else ()),
        *(word for option in options for word in ("-o", option)),
        "--",
        login.login,
        argv,
    ]


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
        self._complaints: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 - a file, so that no full pipe stops ssh
        argv = command(login, f"{far_program(login.launch)} _far", compress=compress)
        try:
            self.process = subprocess.Popen(
                argv,
                env={name: value for name, value in os.environ.items() if name not in without},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._complaints,
                start_new_session=True,  # a Ctrl-C is for us to pass on
            )
        except FileNotFoundError:
            self._complaints.close()
            raise Unreachable("no `ssh` on PATH", "hint: install the OpenSSH client") from None
        except BaseException:
            self._complaints.close()
            raise
        self._incoming = Incoming(_pipe(self.process.stdout).fileno())

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
        except (EOFError, TimeoutError, Confused) as error:
            raise self._no_greeting(error) from None
        if there.wire != WIRE:
            raise _other_version(self.login, there.launch)
        self._greeted = True

    def send(self, request: object, contents: Iterable[bytes] = ()) -> None:
        """Say this; what goes wrong with the connection is told by `receive`."""
        stdin = _pipe(self.process.stdin)
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            stdin.write(encoded(request))
            for piece in contents:
                stdin.write(piece)
            stdin.flush()

    def receive(self, kind: type[T], deadline: float | None = None) -> T:
        """The answer to what was said. Raises what the other side raised, Broken or Silent."""
        self.greet(deadline)
        try:
            reply = decoded(self._incoming.line(deadline), Reply)
        except (EOFError, TimeoutError) as error:
            raise self._broken(error) from None
        if reply.error:
            raise far_error(reply.error, reply.exit_code)
        return decoded(bytes(reply.value), kind)

    def ask(self, request: object, kind: type[T], *, contents: Iterable[bytes] = (), timeout_s: float) -> T:
        self.greet()
        self.send(request, contents)
        return self.receive(kind, time.monotonic() + timeout_s)

    def hang_up(self) -> None:
        """Let the other side see that nobody listens any more."""
        with contextlib.suppress(BrokenPipeError):
            _pipe(self.process.stdin).close()

    def close(self) -> None:
        """Nothing of it is left on return; the other side ends by itself."""
        _end(self.process)
        self.hang_up()
        _pipe(self.process.stdout).close()
        self._complaints.close()

    def _no_greeting(self, error: Exception) -> LaunchError:
        if isinstance(error, Confused):
            return Unreachable(f"{_who(self.login)}: expected launch there to answer, got something else: {error}")
        if isinstance(error, TimeoutError):
            return Silent(f"{_who(self.login)} does not answer", *self._last_words())
        code = self._exit_code()
        words = self._last_words()
        if code in (_NOT_FOUND, _NOT_EXECUTABLE):
            hint = f"hint: `launch: ~/path/to/launch` of {self.login.cluster} in the clusters file says where it is"
            return Unreachable(f"{_who(self.login)}: there is no `{self.login.launch}`", *words, hint)
        if code == Exit.BAD_INPUT:
            return _other_version(self.login, far_version(self.login))
        if code == _SSH_FAILED:
            return Unreachable(f"{_who(self.login)} cannot be reached", *words, *_hint(self.login, words))
        return Broken(f"{_who(self.login)}: the connection ended before launch there answered ({code})", *words)

    def _broken(self, error: Exception) -> Unreachable:
        if isinstance(error, TimeoutError):
            return Silent(f"{_who(self.login)} does not answer any more")
        return Broken(f"{_who(self.login)}: the connection broke", *self._last_words())

    def _exit_code(self) -> int | None:
        with contextlib.suppress(subprocess.TimeoutExpired):
            return self.process.wait(_LEAVE_S)
        return None

    def _last_words(self) -> list[str]:
        """The line that says why, as far as ssh or the shell there said it; it is their last one."""
        size = os.fstat(self._complaints.fileno()).st_size
        tail = os.pread(self._complaints.fileno(), _TAIL_BYTES, max(0, size - _TAIL_BYTES)).decode(errors="replace")
        lines = [line.strip() for line in tail.splitlines() if line.strip()]
        return [f"  {line[:500]}" for line in lines[-1:]]


def far_error(lines: Collection[str], code: int) -> LaunchError:
    """What went wrong there, as if it had gone wrong here."""
    error = LaunchError(*lines)
    error.exit_code = Exit(code) if code in set(Exit) else Exit.INTERNAL
    return error


def far_version(login: FarProgram) -> str:
    """What `launch --version` says there; for a message."""
    argv = command(login, f"{far_program(login.launch)} --version")
    with contextlib.suppress(OSError, subprocess.TimeoutExpired):
        done = subprocess.run(argv, stdin=subprocess.DEVNULL, capture_output=True, check=False, timeout=_CONNECT_S)
        words = done.stdout.decode(errors="replace").split()
        if done.returncode == 0 and words:
            return words[-1][:40]
    return "?"


def _other_version(login: FarProgram, there: str) -> Unreachable:
    return Unreachable(
        f"{_who(login)}: launch {there} there, {VERSION} here: they do not understand each other",
        f"hint: install launch {VERSION} on {login.login}, or the one there here",
    )


def _who(login: FarProgram) -> str:
    return f"login node {login.login} of {login.cluster}"


def _hint(login: FarProgram, words: Iterable[str]) -> list[str]:
    said = "\n".join(words)
    return [f"hint: {hint.format(login=login.login)}" for what, hint in _HINTS.items() if what in said][:1]


def _end(process: "subprocess.Popen[Any]") -> None:
    """Ask it, then make it; it and what it started are in a session of their own."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, number)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(_LEAVE_S)
            return


def _pipe(pipe: IO[bytes] | None) -> IO[bytes]:
    if pipe is None:
        raise ValueError("expected a pipe")
    return pipe
