"""One connection to one host: the host proves who it is, then we do, then commands.

What was started there lives on when its connection ends.
"""

import time
from collections.abc import Iterable, Sequence
from types import TracebackType
from typing import Self

from launcher.errors import Unreachable
from launcher.hostlink import known_hosts
from launcher.hostlink.by_paramiko.dialling import dial, silent
from launcher.hostlink.by_paramiko.offers import Offers
from launcher.hostlink.by_paramiko.transport import BROKEN, Answer, Channel, NoChannel, Transport
from launcher.hostlink.failures import Dropped, Lost, NoAccess, why
from launcher.hostlink.known_hosts import BadKey, ChangedKey, HostKey, RevokedKey, UnknownKey, who
from launcher.hostlink.running import Done, Running, command_line
from launcher.hostlink.target import Target

__all__ = [
    "BadKey", "ChangedKey", "Done", "Dropped", "Line", "Lost", "NoAccess", "RevokedKey", "Running", "UnknownKey",
    "connect", "host_key",
]  # fmt: skip

AUTHENTICATION_S = 15.0  # LDAP and PAM may take their time; a command has 30 s, and more may be silent after this
_MOST_KEYS = 5  # shown over one connection: sshd ends it at the sixth (MaxAuthTries)


def connect(target: Target, *, deadline: float | None = None) -> "Line":
    """Log in. Raises UnknownKey, ChangedKey, RevokedKey, NoAccess, Dropped or another Unreachable."""
    via = _way_to(target, deadline)
    try:
        return _login(target, via, deadline)
    except BaseException:
        if via is not None:
            via.close()
        raise


def host_key(target: Target, *, deadline: float | None = None) -> HostKey:
    """The key that the host shows; nobody logs in there, but at the hosts on the way."""
    via = _way_to(target, deadline)
    try:
        transport, key = _greeted(target, via, _earlier(target.connect_timeout_s, deadline))
        transport.leave()
        return key
    finally:
        if via is not None:
            via.close()


class Line:
    """One connection to one host, for one user at a time."""

    def __init__(self, target: Target, transport: Transport, via: "Line | None") -> None:
        self.target = target
        self.peer_address = transport.peer_address
        self._transport = transport
        self._via = via

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def alive(self) -> bool:
        """False once the connection is known to have ended."""
        return self._transport.is_active()

    def run(self, argv: Sequence[str], *, stdin: bytes | Iterable[bytes] = b"", limit_s: float = 60.0) -> Done:
        """Run it to its end. Raises Lost where that is not seen: it may go on there."""
        deadline = time.monotonic() + limit_s
        with self.start(argv) as running:
            for piece in (stdin,) if isinstance(stdin, bytes) else stdin:
                if not running.feed(piece, deadline - time.monotonic()):
                    break  # it wants no more: how it ended says why
            done = running.finish(deadline - time.monotonic())
        if done.code is None and not self.alive:
            raise Lost(f"{who(self.target)}: the connection broke")
        return done

    def start(self, argv: Sequence[str]) -> Running:
        """Start it and leave its stdin open."""
        try:
            channel = self._transport.open_session(timeout=AUTHENTICATION_S)
        except NoChannel as error:
            raise Unreachable(f"{who(self.target)}: no more commands at the same time: {error.text}") from None
        except BROKEN as error:
            raise Lost(f"{who(self.target)}: the connection broke: {why(error)}") from None
        try:
            channel.exec_command(command_line(argv))
        except BROKEN as error:
            channel.close()
            raise Lost(f"{who(self.target)}: no command can be started there: {why(error)}") from None
        return Running(self.target, channel)

    def channel_to(self, target: Target, limit_s: float) -> Channel:
        """A way from this host to another one. Raises Unreachable."""
        try:
            return self._transport.channel_to(target.hostname, target.port, limit_s)
        except NoChannel as error:
            raise Unreachable(f"{who(target)} cannot be reached from {who(self.target)}: {error.text}") from None
        except BROKEN as error:
            raise Unreachable(f"{who(target)} cannot be reached through {who(self.target)}: {why(error)}") from None

    def close(self) -> None:
        """Nothing of the connection is left on return. What was started there goes on."""
        self._transport.leave()
        if self._via is not None:
            self._via.close()


def _way_to(target: Target, deadline: float | None) -> Line | None:
    """The last of the hosts to pass; None where there is none."""
    via: Line | None = None
    for hop in target.jumps:
        try:
            via = _login(hop, via, deadline)
        except BaseException:
            if via is not None:
                via.close()
            raise
    return via


def _login(target: Target, via: Line | None, deadline: float | None) -> Line:
    transport = _recognized(target, via, deadline)
    try:
        with Offers(target) as offers:
            for number, key in enumerate(offers.keys):
                if number and (number % _MOST_KEYS == 0 or not transport.is_active()):
                    transport.leave()
                    transport = _recognized(target, via, deadline)
                answer = transport.offer(target.user, key, _earlier(AUTHENTICATION_S, deadline))
                if answer is Answer.YES:
                    return Line(target, transport, via)
                if answer is Answer.NONE:
                    raise Unreachable(f"{who(target)}: no answer to the login as {target.user} in time")
                if answer is Answer.MORE:
                    raise offers.refused(f"it wants {', '.join(transport.wants)}")
            raise offers.refused("")
    except BaseException:
        transport.leave()
        raise


def _recognized(target: Target, via: Line | None, deadline: float | None) -> Transport:
    """A connection to the host that it says it is. Nothing has been sent yet that proves who we are."""
    transport, key = _greeted(target, via, _earlier(target.connect_timeout_s, deadline))
    try:
        known_hosts.check(target, key)
    except BaseException:
        transport.leave()
        raise
    return transport


def _greeted(target: Target, via: Line | None, deadline: float) -> tuple[Transport, HostKey]:
    """A connection with keys exchanged, and the host's, which nobody has looked at yet."""
    inner = dial(target, deadline) if via is None else via.channel_to(target, max(0.1, deadline - time.monotonic()))
    transport = Transport(inner, max(1.0, deadline - time.monotonic()))
    try:
        if not transport.agree(known_hosts.expected_kinds(target), deadline):
            raise silent(target)
        if not transport.is_active():
            error = transport.get_exception()
            if transport.remote_version:
                raise Unreachable(f"{who(target)}: no secure connection: {why(error)}")
            raise Dropped(f"{who(target)} hung up at once", "hint: its sshd may have too many logins at the moment")
        key = transport.get_remote_server_key()
        return transport, HostKey(target.known_as, key.get_name(), key.asbytes())
    except BaseException:
        transport.leave()
        raise


def _earlier(limit_s: float, deadline: float | None) -> float:
    own = time.monotonic() + limit_s
    return own if deadline is None else min(own, deadline)
