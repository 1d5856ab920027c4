"""Adapt paramiko: silence on a connection has a time limit, changes of the wall clock do no harm, and a command's death
by a signal is reported.

This is the only module that depends on paramiko 5.1's undocumented behaviour, which tests/remote checks.
"""

import glob
import io
import logging
import signal
import socket
import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from enum import Enum
from functools import lru_cache
from pathlib import Path
from typing import Any

import launcher.remote.paramiko_alone  # noqa: F401 - before paramiko

# isort: split
import paramiko
from paramiko.agent import AgentSSH
from paramiko.common import MSG_CHANNEL_REQUEST, cMSG_GLOBAL_REQUEST
from paramiko.packet import Packetizer
from paramiko.ssh_exception import PartialAuthentication

from launcher.errors import BadInput
from launcher.remote.failures import why
from launcher.remote.running import TURN_S

BROKEN = (paramiko.SSHException, EOFError, OSError)  # whatever the end of a connection looks like
Session = paramiko.Channel
Key = paramiko.PKey
NoChannel = paramiko.ChannelException

_AGENT_S = 15.0  # a person may have to touch something
_WINDOW = 4 * 1024 * 1024
_LEAVE_S = 1.0

_reading = threading.Lock()
_log = logging.getLogger("paramiko")
_log.addHandler(logging.NullHandler())
_log.propagate = False


class KeyAnswer(Enum):
    """A host's answer to an offered key: accepted, refused, accepted but more is needed, or no answer in time."""

    YES = "yes"
    NO = "no"
    MORE = "more"  # it requires something else in addition or instead
    NONE = "none"  # no answer in time


class ParamikoConnection(paramiko.Transport):
    """A connection of paramiko's, over a socket or over a channel through another connection.

    After `asked_after_s` of silence a keepalive is sent; after `silence_limit_s` in all the connection is given up.
    """

    def __init__(
        self, inner: socket.socket | Session, limit_s: float, *, asked_after_s: float, silence_limit_s: float
    ) -> None:
        self.asked_after_s, self.silence_limit_s = asked_after_s, silence_limit_s
        self.wire = _Wire(inner, silence_limit_s)
        all_that_it_needs: Any = self.wire  # of a socket
        super().__init__(all_that_it_needs, default_window_size=_WINDOW, packetizer_class=_Packets)
        self.peer_address = str(inner.getpeername()[0]) if isinstance(inner, socket.socket) else ""
        self.banner_timeout = limit_s + 1  # the caller's deadline is the one that counts
        self.wants: tuple[str, ...] = ()  # what the host takes instead of a key, or beside it
        self._asked_at = 0.0
        table: Any = paramiko.Transport._channel_handler_table  # type: ignore[attr-defined]  # noqa: SLF001 - see above
        self._channel_handler_table = {**table, MSG_CHANNEL_REQUEST: _note_signal}

    def agree(self, kinds: Collection[str], deadline: float) -> bool:
        """Agree on the encryption, and prefer host keys of the algorithms `kinds`; return False if the host is silent
        until the deadline (by `time.monotonic`).

        True means only that the attempt is over; `is_active` says whether it succeeded.
        """
        options = self.get_security_options()
        options.key_types = sorted(options.key_types, key=lambda name: _kind(name) not in kinds)
        agreed = threading.Event()
        self.start_client(event=agreed)
        return _came(agreed, deadline)

    def offer(self, user: str, key: Key, deadline: float) -> KeyAnswer:
        """Try to log in as `user` with the key, and return the host's answer: YES if that logs the user in, NONE if
        there is no answer by `deadline` (by `time.monotonic`), and NO also if the connection breaks. After MORE,
        `self.wants` names the methods of login that the host wants in addition or instead.
        """
        answered = threading.Event()
        try:
            self.auth_publickey(user, key, answered)
        except BROKEN:
            return KeyAnswer.NO
        if not _came(answered, deadline):
            return KeyAnswer.NONE
        if self.is_authenticated():
            packets: Any = self.packetizer
            packets.on_quiet = self._on_quiet
            return KeyAnswer.YES
        error = self.get_exception()
        if isinstance(error, PartialAuthentication | paramiko.BadAuthenticationType):
            self.wants = tuple(error.allowed_types)
            return KeyAnswer.MORE
        return KeyAnswer.NO

    def channel_to(self, hostname: str, port: int, limit_s: float) -> Session:
        """Open a channel from the host to port `port` of `hostname`, within `limit_s`, and return it; paramiko's errors
        are raised as they are.
        """
        return self.open_channel("direct-tcpip", (hostname, port), ("127.0.0.1", 0), timeout=limit_s)

    def leave(self) -> None:
        """End the connection and wait up to a second until its thread has exited.

        The thread, which still reads from the socket, closes it: if another thread did, the descriptor's number could
        be given to a new socket while this one is being read.
        """
        self.wire.end()
        if self.is_alive():
            self.join(_LEAVE_S)
        self.close()
        self.wire.close()

    def _on_quiet(self) -> None:
        """Send a keepalive, or end the connection after `silence_limit_s` of silence. The connection's thread calls
        this ten times a second while it receives nothing.
        """
        now, heard_at = time.monotonic(), self.wire.heard_at
        if self._asked_at > heard_at:
            if now - self._asked_at > self.silence_limit_s - self.asked_after_s:
                raise EOFError
        elif now - heard_at > self.asked_after_s:
            self._asked_at = now
            question = paramiko.Message()
            question.add_byte(cMSG_GLOBAL_REQUEST)
            question.add_string("keepalive@openssh.com")
            question.add_boolean(True)  # it is refused: any answer will do
            self._send_user_message(question)  # type: ignore[attr-defined]  # its own keepalive wants no answer


def _came(event: threading.Event, deadline: float) -> bool:
    """Return whether the event was set by the deadline (by `time.monotonic`).

    Waiting is done in short pieces, because Python handles a Ctrl-C that comes just before a wait only at its end.
    """
    while not event.wait(min(TURN_S, max(0.0, deadline - time.monotonic()))):
        if time.monotonic() >= deadline:
            return False
    return True


class _Wire:
    """The socket or channel under a connection, which is closed if the other side accepts no data for `limit_s`."""

    def __init__(self, inner: Any, limit_s: float) -> None:
        self._inner, self._limit_s = inner, limit_s
        self._stalled_at: float | None = None
        self.heard_at = time.monotonic()

    @property
    def _closed(self) -> bool:  # paramiko looks at it before it waits for its thread
        """Return whether the socket or channel is closed; paramiko reads this attribute."""
        return bool(self._inner._closed)  # noqa: SLF001 - the same

    def send(self, data: bytes) -> int:
        """Send some of the data and return how much. Raise TimeoutError if nothing is accepted now, and
        ConnectionResetError once that has lasted longer than `limit_s`.
        """
        try:
            sent = int(self._inner.send(data))
        except TimeoutError:
            now = time.monotonic()
            self._stalled_at = self._stalled_at or now
            if now - self._stalled_at > self._limit_s:
                raise ConnectionResetError("nothing is taken any more") from None
            raise
        self._stalled_at = None
        return sent

    def recv(self, size: int) -> bytes:
        """Return received bytes, at most `size` (none: the stream has ended), and record the monotonic time in
        `heard_at`. Raise TimeoutError if nothing arrives within the time-out set by `settimeout`.
        """
        data = bytes(self._inner.recv(size))
        self.heard_at = time.monotonic()
        return data

    def settimeout(self, limit_s: float | None) -> None:
        """Set the time-out of the socket or channel: the seconds after which one `send` or `recv` raises TimeoutError,
        or None for never. It is not the `limit_s` after which the connection is closed.
        """
        self._inner.settimeout(limit_s)

    def close(self) -> None:
        """Close the socket or channel."""
        self._inner.close()

    def end(self) -> None:
        """Wake any thread that waits on the socket, with an end of the stream."""
        if not isinstance(self._inner, socket.socket):
            self._inner.close()
            return
        try:
            self._inner.shutdown(socket.SHUT_RDWR)
        except OSError:
            return  # it has ended by itself


class _Packets(Packetizer):
    """A packetizer without paramiko's two timers: that of the handshake, whose thread would outlive a failed handshake,
    and that of keepalives, which depends on the wall clock. In place of keepalives, `on_quiet` is called again and
    again while nothing is received.
    """

    on_quiet: Callable[[], None] | None = None

    def start_handshake(self, timeout: float) -> None:
        """Do nothing: the caller's deadline applies to the handshake."""

    def _check_keepalive(self) -> None:
        """Call `on_quiet`, which sends keepalives by a clock that is never set, in place of paramiko's own. paramiko
        calls this while it receives nothing.
        """
        if self.on_quiet is not None and not self.need_rekey():
            self.on_quiet()


class Agent(AgentSSH):
    """The user's ssh-agent, used to sign and never forwarded. Its failures are raised as SSHException, EOFError,
    OSError or ValueError.
    """

    def __init__(self, path: str) -> None:
        super().__init__()
        if not path:
            raise ValueError("SSH_AUTH_SOCK is not set")
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            connection.settimeout(_AGENT_S)
            connection.connect(path)
            self._connect(connection)  # type: ignore[attr-defined]  # it asks no other than SSH_AUTH_SOCK by itself
        except BaseException:
            connection.close()
            raise

    def close(self) -> None:
        """Close the connection to the agent."""
        self._close()  # type: ignore[attr-defined]


def configuration(files: Sequence[Path], name: str, said: Mapping[str, str]) -> dict[str, tuple[str, ...]]:
    """Return the options of the host `name`, by keyword in lower case, from files of OpenSSH's configuration, for a
    machine without ssh; options in `said` override them.

    Raise BadInput if the files cannot be read or contain an Include that applies.
    """
    config = paramiko.SSHConfig()
    try:
        for path in files:
            config.parse(io.StringIO(path.read_text(errors="surrogateescape")))
        found: Mapping[str, str | list[str]] = config.lookup(name)
    except (paramiko.ConfigParseError, OSError) as error:
        raise BadInput(f"{name}: SSH configuration: {why(error)}") from None
    if any(glob.glob(str(Path("~/.ssh", word).expanduser())) for word in str(found.get("include", "")).split()):
        raise BadInput(f"{name}: Include of the SSH configuration needs ssh", "hint: install the OpenSSH client")
    several = {keyword: value.split() if isinstance(value, str) else value for keyword, value in found.items()}
    return {keyword: tuple(words) for keyword, words in several.items()} | {key: (one,) for key, one in said.items()}


def read_key(path: Path) -> Key:
    """Return the private key in a file; raise ValueError with the reason if it cannot be read."""
    try:
        seen = path.stat()
        with _reading:  # an RSA key takes a quarter of a second to check: once for all hosts
            return _read_key(path, seen.st_mtime_ns)
    except (paramiko.PasswordRequiredException, TypeError):  # cryptography raises a TypeError for it
        raise ValueError(f"has a passphrase: `ssh-add {path}` and `agent: true`, or a key without one") from None
    except OSError as error:
        raise ValueError(f"cannot be read: {why(error)}") from None
    except Exception as error:  # noqa: BLE001 - whatever the readers of its many forms say
        raise ValueError(f"is not a private key that can be used here: {why(error)}") from None


@lru_cache(maxsize=64)
def _read_key(path: Path, _changed_ns: int) -> Key:
    """Return the key in a file; the cached result is used for as long as the time of the file's last change is the
    same.
    """
    return paramiko.PKey.from_path(path)


def _note_signal(channel: Session, message: paramiko.Message) -> None:
    """Record a signal that ended the command, which paramiko ignores, as exit code 128 + n."""
    if message.get_text() == "exit-signal":
        message.get_boolean()
        name = f"SIG{message.get_text()}"
        if name in signal.Signals.__members__:
            channel.exit_status = 128 + signal.Signals[name]
        channel.status_event.set()
        return
    message.rewind()
    message.get_int()  # the channel's number
    channel._handle_request(message)  # type: ignore[attr-defined]  # noqa: SLF001 - what would be called without us


def _kind(name: str) -> str:
    """Return the name that known-hosts files have for keys of this algorithm, such as `ssh-rsa` for `rsa-sha2-512`."""
    return "ssh-rsa" if name.startswith("rsa-sha2-") else name
