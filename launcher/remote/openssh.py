"""Connect with the user's own ssh program, so that its configuration, certificates, Kerberos, hardware keys and open
connections apply.

A host of a pool gets one connection for all commands: the user's own, if ssh has one open (ControlMaster), else a new
one, which lasts as long as a command on the host whose stdin this process holds open. A login node gets a connection
for each command.
"""

import base64
import contextlib
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from launcher.errors import BadInput, Unreachable
from launcher.remote import known_hosts
from launcher.remote.failures import Broken, NoAccess, Silent
from launcher.remote.known_hosts import HostKey
from launcher.remote.program import ProgramChannel
from launcher.remote.running import Running, command_line
from launcher.remote.target import (
    AUTHENTICATION_S,
    CONNECT_TIMEOUT_S,
    Target,
    configured,
    dropped,
    earlier,
    resolved,
    silent,
    who,
)

_SSH_FAILED = 255
_LONGEST_FOLDER = 60
_MARK = "launch-connected"
_NOTICE_S = 0.2  # a connection's holder ends a little after those that share it
# No prompts, no forwarding, no lasting connection; the user's settings of hosts, keys and known hosts apply.
_OPTIONS = (
    "BatchMode=yes",
    "ForwardAgent=no",
    "ForwardX11=no",
    "ClearAllForwardings=yes",
    "ControlMaster=no",
    "RemoteCommand=none",
    "RequestTTY=no",
    "LogLevel=ERROR",  # no banners: its output is the reason of a failure
    f"ConnectTimeout={CONNECT_TIMEOUT_S:g}",
    "ServerAliveInterval=5",
    "ServerAliveCountMax=3",
)
_KINDS = {"ssh-rsa": "rsa-sha2-512,rsa-sha2-256,ssh-rsa"}
_HUNG_UP = ("kex_exchange_identification", "ssh_exchange_identification")
_CLOSED = ("Connection closed", "Connection reset")
_SAID_LINES = 8  # of ssh's last output, to which each jump host may add
_HINTS = {
    "Host key verification failed": "`ssh {name}` by hand shows the host's key and asks whether it is the right one",
    "Permission denied": "`ssh {name} true` must work without a password: by a key, an agent or an open master",
    "Could not resolve hostname": "check what it is called in the clusters file, and HostName in the SSH configuration",
    "Too many authentication failures": "name the key by IdentityFile in the SSH configuration",
}


@dataclass(frozen=True, slots=True)
class SshCommand:
    """How ssh is called for one host: its name (perhaps user@name), options that override the launcher's own, further
    flags, and in `without` the variables that ssh must not get.
    """

    name: str  # the user's name for the host, perhaps user@name
    options: tuple[str, ...] = ()  # placed before our own options, which they override
    flags: tuple[str, ...] = ()  # further words of the command line, placed before the host's name
    without: frozenset[str] = frozenset()  # variables that must not reach ssh

    def argv(self, *line: str) -> list[str]:
        """Return the command line of ssh that runs `line`, whose words ssh joins by spaces, in a shell on the host; it
        may be empty if the flags say what ssh is to do.
        """
        options = (word for option in (*self.options, *_OPTIONS) for word in ("-o", option))
        return ["ssh", *configured(), *options, *self.flags, "--", self.name, *line]

    def forward(self, hostname: str, port: int) -> "SshProcess":
        """Start an ssh whose stdin and stdout are a connection from the host to the port of `hostname`, and return
        it.
        """
        onwards = replace(self, flags=(*self.flags, "-W", f"{hostname}:{port}"))
        return SshProcess(onwards.argv(), self.without, lambda: False)

    def start(self, line: str, shared: Callable[[], bool] = lambda: False) -> "SshProcess":
        """Start an ssh that runs the line on the host, and return it.

        Once it has ended, `shared` is called to learn whether the connection that it shares with others still exists;
        if so, exit code 255 is the command's own.
        """
        return SshProcess(self.argv(line), self.without, shared)

    def shared_by(self, socket: Path) -> tuple["SshCommand", "SshCommand"]:
        """Return two commands that share one connection to the host by ControlMaster: (the one that opens it and lets
        others use it at the path `socket`, one that uses it).
        """
        flags = (*self.flags, "-S", str(socket).replace("%", "%%"))
        master = replace(self, options=("ControlMaster=yes", "ControlPersist=no", *self.options), flags=flags)
        return master, replace(self, flags=flags)


class SshProcess(ProgramChannel):
    """A running ssh program as a channel to the command on the host."""

    def __init__(self, argv: Sequence[str], without: Collection[str], shared: Callable[[], bool]) -> None:
        """Start ssh; `shared` returns whether the connection that it shares still exists."""
        self._shared = shared
        try:
            super().__init__(argv, _environment(without))
        except FileNotFoundError:
            raise _no_ssh() from None

    def code(self, wait_s: float) -> int | None:
        """Return the command's exit code, -1 if ssh lost the connection, or None if it has not ended after `wait_s`."""
        code = super().code(wait_s)
        return -1 if code is not None and code == _SSH_FAILED and not self._shared() else code


class OpenSshTransport:
    """A connection of ssh over which all commands of this process run."""

    peer_address = ""  # only ssh knows it

    def __init__(self, target: Target, command: SshCommand, master: SshProcess | None, folder: Path) -> None:
        """Use a connection that `master` holds, or, if it is None, the user's own ssh."""
        self._target = target
        self._command = command
        self._master = master
        self._folder = folder

    def alive(self) -> bool:
        """Return whether the connection is open, as far as this process can tell. If it uses a connection that the
        user's own ssh keeps open (ControlMaster), ssh is asked; raise Unreachable if ssh is not installed.
        """
        if self._master is None:
            return _has_master(self._command)
        return self._master.process.poll() is None

    def start(self, command: Sequence[str] | str) -> SshProcess:
        """Start the command on the host, and return its channel; raise Broken if the connection has ended."""
        if self._master is not None and self._master.process.poll() is not None:
            raise Broken(f"{who(self._target)}: the connection broke")
        line = command if isinstance(command, str) else command_line(command, told=True)
        return self._command.start(line, self._outlives)

    def channel_to(self, hostname: str, port: int) -> SshProcess:
        """Return a connection from the host that this transport leads to, to a port of `hostname`, a name that the host
        resolves. It is an ssh process, whose stdin and stdout are the connection, and which ends at once if the port
        cannot be reached. Raise Broken if the connection to the host has ended.
        """
        if not self.alive():
            raise Broken(f"{who(self._target)}: the connection broke")
        return self._command.forward(hostname, port)

    def _outlives(self) -> bool:
        """Return whether the connection still exists after a command over it has ended: if so, the command ended by
        itself, else perhaps only because the connection was lost. Look up to 0.2 seconds later, because ssh notices a
        lost connection a moment after the command's end.
        """
        if self._master is not None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._master.process.wait(_NOTICE_S)
        return self.alive()

    def close(self) -> None:
        """Close the connection, unless it is the user's own."""
        if self._master is not None:
            self._master.close()
        shutil.rmtree(self._folder, ignore_errors=True)


def connected(target: Target, deadline: float | None) -> OpenSshTransport:
    """Return a transport over the user's open connection, or over a new one, made before the deadline (by
    `time.monotonic`; None: only the target's own time limit applies). Raise BadKey for the host's key, NoAccess for the
    login, and Dropped or another Unreachable for the network.
    """
    command = _command(target)
    folder = Path(tempfile.mkdtemp(prefix="launch-ssh-", dir=_short_folder()))
    try:
        if _has_master(command):
            return OpenSshTransport(target, command, None, folder)
        first, others = command.shared_by(folder / "way")
        master = first.start(f"echo {_MARK}; exec cat >/dev/null")
        try:
            _wait_for_mark(
                target, Running(who(target), master), earlier(target.connect_timeout_s + AUTHENTICATION_S, deadline)
            )
        except BaseException:
            master.close()
            raise
        return OpenSshTransport(target, others, master, folder)
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise


def shown_key(target: Target, deadline: float | None) -> HostKey:
    """Return the key that the host presents, without a login there: ssh gives the key to a program of the launcher's
    that accepts none. Raise Unreachable if none comes before the deadline (by `time.monotonic`, None for none). Raise
    BadInput if an option of the host is wrong.
    """
    whole = resolved(target)
    kinds = ",".join(_KINDS.get(kind, kind) for kind in known_hosts.expected_kinds(whole))
    with tempfile.TemporaryDirectory(prefix="launch-ssh-") as folder:
        seen = Path(folder) / "seen"
        options = (
            "ControlPath=none",
            "StrictHostKeyChecking=yes",
            "CheckHostIP=no",
            "UserKnownHostsFile=/dev/null",
            "GlobalKnownHostsFile=/dev/null",
            "IgnoreUnknown=KnownHostsCommand",  # which came with OpenSSH 8.5
            f"KnownHostsCommand=/bin/sh -c 'echo %I %t %K >>{seen}'",
            *((f"HostKeyAlgorithms=^{kinds}",) if kinds else ()),
        )
        command = _command(target)
        refused = Running(who(target), replace(command, options=(*options, *command.options)).start("true"))
        try:
            refused.finish(max(0.1, earlier(target.connect_timeout_s + AUTHENTICATION_S, deadline) - time.monotonic()))
        except Silent:
            raise silent(target) from None
        finally:
            refused.close()
        for line in seen.read_text().splitlines() if seen.exists() else ():
            reason, kind, blob = line.split()
            if reason == "HOSTNAME":
                return HostKey(whole.known_as, kind, base64.b64decode(blob))
    raise Unreachable(f"{who(target)}: its host key could not be looked at", *refused.last_error_lines())


def _command(target: Target) -> SshCommand:
    """Return how ssh is called for this host."""
    said = (f"{keyword}={value}" for keyword, value in target.said)
    keys = (f'IdentityFile="{path}"' for path in target.keys)
    return SshCommand(target.name, ("StrictHostKeyChecking=yes", *said, *keys))


def _has_master(command: SshCommand) -> bool:
    """Return whether the user has an open connection to the host that other ssh commands may share (ControlMaster);
    raise Unreachable if ssh is not installed.
    """
    argv = replace(command, flags=("-O", "check", *command.flags)).argv()
    try:
        done = subprocess.run(
            argv,
            env=_environment(),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            check=False,
            timeout=CONNECT_TIMEOUT_S,
        )
    except FileNotFoundError:
        raise _no_ssh() from None
    except subprocess.TimeoutExpired:
        return False
    return done.returncode == 0


def _environment(without: Collection[str] = ()) -> dict[str, str]:
    """Return the environment of ssh and of its programs for jump hosts, in which no window can ask the user for a
    password; variables named in `without` are removed.
    """
    return {name: value for name, value in os.environ.items() if name not in without} | {"SSH_ASKPASS_REQUIRE": "never"}


def _no_ssh() -> Unreachable:
    """Return the error that ssh is not installed."""
    return Unreachable("no `ssh` on PATH", "hint: install the OpenSSH client")


def _wait_for_mark(target: Target, master: Running, deadline: float) -> None:
    """Wait until the command on the host prints the text that proves the login; skip what a shell prints before. Raise
    Unreachable if ssh ends first, or at the monotonic time `deadline`.
    """
    try:
        while (line := master.readline(max(0.0, deadline - time.monotonic()))) != f"{_MARK}\n".encode():
            if not line:
                raise _refused(target, master)
    except Silent:
        raise silent(target) from None


def _refused(target: Target, master: Running) -> Unreachable:
    """Return the error for a login that failed, chosen by the last lines that ssh (`master`) has printed: NoAccess if
    no key was accepted, Dropped if the host closed the connection, or Unreachable, also for an untrusted host key.

    If a jump host is the reason, ssh's last line only says that the connection was closed, so earlier lines are used.
    """
    said = master.last_error_lines(_SAID_LINES)
    words = [line for line in said if not line.lstrip().startswith((*_HUNG_UP, *_CLOSED))] or said
    told = "\n".join(words)
    hung_up = any(line.lstrip().startswith(_HUNG_UP) for line in said)
    proxy = _proxy(target) if hung_up else ""
    if hung_up and not proxy:
        return dropped(target, *words)
    way, advice = f" by way of {proxy}" if proxy else "", hint(target.name, words)
    if "Host key verification failed" in told:
        if proxy:
            why = "the key of a host on the way to it is not trusted"
            return Unreachable(f"{who(target)} cannot be reached{way}: {why}", *words, *advice)
        try:
            known_hosts.check(resolved(target), shown_key(target, None))
        except Unreachable as error:
            return error
    if "Permission denied" in told or "Too many authentication failures" in told:
        return NoAccess(f"{who(target)}: no access{way}", *words, *advice)
    return Unreachable(f"{who(target)} cannot be reached{way}", *words, *advice)


def _proxy(target: Target) -> str:
    """Return the jump hosts or the proxy command as text for a message; "" if there is neither or that is unknown."""
    with contextlib.suppress(BadInput):  # what ssh understands need not be known to us
        whole = resolved(target)
        return ", ".join(jump.name for jump in whole.jumps) or whole.proxy_command
    return ""


def hint(name: str, words: Iterable[str]) -> list[str]:
    """Return a list with one hint that fits `words`, the lines which ssh printed, or an empty list; `name` is the
    host's name.
    """
    said = "\n".join(words)
    return [f"hint: {hint.format(name=name)}" for what, hint in _HINTS.items() if what in said][:1]


def _short_folder() -> str:
    """Return the folder in which to make a folder for a socket: the usual one for temporary files, or /tmp if its path
    is so long that a socket's path in it would exceed 100 bytes.
    """
    usual = tempfile.gettempdir()
    return usual if len(os.fsencode(usual)) <= _LONGEST_FOLDER else "/tmp"  # noqa: S108 # nosec B108 - a folder of our own in it
