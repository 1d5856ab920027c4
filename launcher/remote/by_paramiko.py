"""Log in with paramiko: through the jump hosts, after a check of the host's key, with the user's keys one after
another.
"""

import base64
import os
import select
import socket
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from launcher.errors import BadInput, Unreachable
from launcher.remote import known_hosts
from launcher.remote.failures import Broken, NoAccess, why
from launcher.remote.known_hosts import HostKey
from launcher.remote.paramiko_library import (
    BROKEN,
    Agent,
    Key,
    KeyAnswer,
    NoChannel,
    ParamikoConnection,
    Session,
    read_key,
)
from launcher.remote.running import ClosedAtTheEnd, command_line
from launcher.remote.target import AUTHENTICATION_S, TRY, Target, dropped, earlier, silent, who

_MOST_KEYS = 5  # shown over one connection: sshd ends it at the sixth (MaxAuthTries)
_MOST = 256 * 1024


class ParamikoChannel:
    """A command that runs over a paramiko connection: its streams and its exit code."""

    def __init__(self, session: Session) -> None:
        self._session = session
        session.settimeout(0.0)
        self._poll = select.poll()
        self._poll.register(session.fileno(), select.POLLIN)

    @property
    def ready_fd(self) -> int:
        """Return a descriptor that is readable when `take` may have output to return."""
        return self._session.fileno()

    def give(self, data: bytes, wait_s: float) -> int:
        """Write data to the command's stdin and return how many bytes were accepted within `wait_s`; raise EOFError if
        stdin is closed.
        """
        try:
            sent = self._session.send(data)
        except TimeoutError:
            self._wait_for_room(wait_s)
            return 0
        except BROKEN:
            raise EOFError from None
        if not sent:
            raise EOFError
        return sent

    def end_input(self) -> None:
        """Close the command's stdin."""
        try:
            self._session.shutdown_write()
        except BROKEN:
            return

    def take(self, wait_s: float) -> tuple[bytes, bytes] | None:
        """Return (new stdout, new stderr), after waiting up to `wait_s` for output if there is none; both are empty if
        none has come. Return None once both streams have ended.
        """
        ended = self._session.eof_received or self._session.closed
        if said := self._new_output():
            return said
        if ended:
            return None
        if wait_s:
            self._poll.poll(wait_s * 1000)
        return self._new_output() or (b"", b"")

    def code(self, wait_s: float) -> int | None:
        """Return the exit code, or None if the command has not ended within `wait_s`."""
        return self._session.exit_status if self._session.status_event.wait(wait_s) else None

    def close(self) -> None:
        """Close the channel; the command continues on the host with its pipes closed."""
        try:
            self._session.close()
        except BROKEN:
            return

    def _new_output(self) -> tuple[bytes, bytes] | None:
        """Return (new stdout, new stderr), or None if there is no new output now."""
        out, err = bytearray(), bytearray()
        while self._session.recv_ready() and len(out) < _MOST:
            out += self._session.recv(_MOST)
        while self._session.recv_stderr_ready() and len(err) < _MOST:
            err += self._session.recv_stderr(_MOST)
        return (bytes(out), bytes(err)) if out or err else None

    def _wait_for_room(self, wait_s: float) -> None:
        """Wait up to `wait_s` until the host accepts input or the channel is closed. The caller finds out which by
        sending again.
        """
        with self._session.lock:
            if self._session.out_window_size == 0 and not self._session.closed:
                self._session.out_buffer_cv.wait(wait_s)


class Offers(ClosedAtTheEnd):
    """The private keys to offer to a host: those in files first, then the ssh-agent's if the target asks for these.

    The agent can sign until this object is closed.
    """

    def __init__(self, target: Target) -> None:
        self.keys: list[Key] = []
        self._target = target
        self._agent: Agent | None = None
        self._shown: list[str] = []
        self._notes: list[str] = []
        for path in target.keys:
            try:
                self.keys.append(read_key(path))
                self._shown.append(str(path))
            except ValueError as error:
                self._notes.append(f"  {path} {error}")
        if target.agent:
            self._ask_agent()

    def close(self) -> None:
        """Close the connection to the ssh-agent."""
        if self._agent is not None:
            self._agent.close()

    def refused(self, what: str) -> NoAccess:
        """Return the error that no key gave access, with `what` as its first words and the keys that were offered."""
        target = self._target
        agent = "" if target.agent else ", or `agent: true` of the pool has your ssh-agent asked"
        return NoAccess(
            f"{who(target)}: no access as {target.user}{f': {what}' if what else ''}",
            f"  keys shown: {', '.join(self._shown)}" if self._shown else "  there was no key to show",
            *self._notes,
            f"hint: `key:` of the host, or IdentityFile in the SSH configuration, names one{agent}",
        )

    def _ask_agent(self) -> None:
        """Add the ssh-agent's keys that were not read from files already; if the target allows no keys but its own,
        only these of them. If the agent does not answer, note why, for the message of `refused`.
        """
        try:
            self._agent = Agent(self._target.agent_socket or os.environ.get("SSH_AUTH_SOCK", ""))
        except (*BROKEN, ValueError) as error:
            self._notes.append(f"  the ssh-agent does not answer: {why(error)}")
            return
        shown = {key.asbytes() for key in self.keys}
        named = {blob for path in self._target.keys if (blob := _public(path))}
        for key in self._agent.get_keys():
            if key.asbytes() not in shown and (not self._target.only_these_keys or key.asbytes() in named):
                self.keys.append(key)
                self._shown.append(f"{key.comment or key.get_name()} of the ssh-agent")


def _public(path: Path) -> bytes | None:
    """Return the bytes of the public key that belongs to the private key file `path`: from the file beside it with
    `.pub` added to the name, or from `path` itself if that holds a public key. Return None if neither has one.
    """
    for candidate in (path.with_name(f"{path.name}.pub"), path):
        try:
            return base64.b64decode(candidate.read_text(errors="replace").split()[1], validate=True)
        except (OSError, IndexError, ValueError):
            continue
    return None


def logged_in(target: Target, deadline: float | None) -> "ParamikoTransport":
    """Return a connection that is logged in before the deadline (by `time.monotonic`; None for none).

    Each step has a time limit of its own as well, so that it ends in any case. Raise UnknownKey, ChangedKey or
    RevokedKey for the host's key, NoAccess for the user's, Dropped or another Unreachable for the network, and BadInput
    for a host with a ProxyCommand.
    """
    _refuse_proxy_commands(target)
    via = _way_to(target, deadline)
    try:
        return _login(target, via, deadline)
    except BaseException:
        if via is not None:
            via.close()
        raise


def shown_key(target: Target, deadline: float | None) -> HostKey:
    """Return the key that the host presents, without a login on that host; its jump hosts are logged in to. Raise
    Unreachable if the host shows none before the deadline (by `time.monotonic`, None for none) or its own time limit,
    and BadInput for a host with a ProxyCommand.
    """
    _refuse_proxy_commands(target)
    via = _way_to(target, deadline)
    try:
        connection, key = _greeted(target, via, earlier(target.connect_timeout_s, deadline))
        connection.leave()
        return key
    finally:
        if via is not None:
            via.close()


class ParamikoTransport:
    """A connection made with paramiko, which may pass through connections to jump hosts."""

    def __init__(self, target: Target, connection: ParamikoConnection, via: "ParamikoTransport | None") -> None:
        self.peer_address = connection.peer_address
        self._target = target
        self._connection = connection
        self._via = via

    def alive(self) -> bool:
        """Return whether the connection is open, as far as this process can tell."""
        return self._connection.is_active()

    def start(self, command: Sequence[str] | str) -> ParamikoChannel:
        """Start the command on the host and return its channel. Raise Broken if the connection has ended, and
        Unreachable if the host refuses.
        """
        try:
            session = self._connection.open_session(timeout=AUTHENTICATION_S)
        except NoChannel as error:
            hint = "hint: a larger `MaxSessions` of its sshd_config allows more"
            raise Unreachable(f"{who(self._target)}: no more commands at the same time: {error.text}", hint) from None
        except BROKEN as error:
            raise Broken(f"{who(self._target)}: the connection broke: {why(error)}") from None
        try:
            text = command if isinstance(command, str) else command_line(command)
            session.exec_command(text)  # nosec B601 - words are quoted one by one, and text is a program of ours
        except BROKEN as error:
            session.close()
            raise Broken(f"{who(self._target)}: no command can be started there: {why(error)}") from None
        return ParamikoChannel(session)

    def channel_to(self, hostname: str, port: int) -> ParamikoChannel:
        """Return a connection from the host to a port of `hostname`, a name that the host resolves; raise Broken if the
        connection to the host has ended, and another Unreachable if that to the port fails.
        """
        try:
            return ParamikoChannel(self._connection.channel_to(hostname, port, AUTHENTICATION_S))
        except NoChannel as error:
            where = f"{hostname} port {port}"
            raise Unreachable(f"{where} cannot be reached from {who(self._target)}: {error.text}") from None
        except BROKEN as error:
            raise Broken(f"{who(self._target)}: the connection broke: {why(error)}") from None

    def way_to(self, target: Target, limit_s: float) -> Session:
        """Open a channel from this connection's host to the SSH port of the host `target`, for a login there, and
        return it; raise Unreachable if that fails within `limit_s`.
        """
        try:
            return self._connection.channel_to(target.hostname, target.port, limit_s)
        except NoChannel as error:
            raise Unreachable(f"{who(target)} cannot be reached from {who(self._target)}: {error.text}") from None
        except BROKEN as error:
            raise Unreachable(f"{who(target)} cannot be reached through {who(self._target)}: {why(error)}") from None

    def close(self) -> None:
        """Close the connection, and those to its jump hosts."""
        self._connection.leave()
        if self._via is not None:
            self._via.close()


def _refuse_proxy_commands(target: Target) -> None:
    """Raise BadInput if the host or a jump host has a ProxyCommand."""
    for one in (*target.jumps, target):
        if one.proxy_command:
            raise BadInput(
                f"{one.name}: ProxyCommand of the SSH configuration is for ssh alone",
                "hint: `transport: openssh` has ssh do it; `ProxyJump` does the same where the command is an ssh",
            )


def _way_to(target: Target, deadline: float | None) -> ParamikoTransport | None:
    """Connect to the target's last jump host, through those before it, and return that connection, or None if the
    target has no jump host. Raise an Unreachable if a jump host cannot be reached or logged in to, before the deadline
    (by `time.monotonic`, None for none) or within its own time limits.
    """
    via: ParamikoTransport | None = None
    for hop in target.jumps:
        try:
            via = _login(hop, via, deadline)
        except BaseException:
            if via is not None:
                via.close()
            raise
    return via


def _login(target: Target, via: ParamikoTransport | None, deadline: float | None) -> ParamikoTransport:
    """Return a connection that is logged in with one of the user's keys; `via` is the connection to the last jump host,
    or None. The deadline is by `time.monotonic`, None for none.

    Raise BadKey for the host's key, NoAccess if the host accepts no key of the user's, and another Unreachable if it
    does not answer.
    """
    connection = _recognized(target, via, deadline)
    try:
        with Offers(target) as offers:
            for number, key in enumerate(offers.keys):
                if number and (number % _MOST_KEYS == 0 or not connection.is_active()):
                    connection.leave()
                    connection = _recognized(target, via, deadline)
                answer = connection.offer(target.user, key, earlier(AUTHENTICATION_S, deadline))
                if answer is KeyAnswer.YES:
                    return ParamikoTransport(target, connection, via)
                if answer is KeyAnswer.NONE:
                    raise Unreachable(f"{who(target)}: no answer to the login as {target.user} in time")
                if answer is KeyAnswer.MORE:
                    raise offers.refused(f"it wants {', '.join(connection.wants)}")
            raise offers.refused("")
    except BaseException:
        connection.leave()
        raise


def _recognized(target: Target, via: ParamikoTransport | None, deadline: float | None) -> ParamikoConnection:
    """Return a connection to the host after a check of the host's key; `via` is the connection to the last jump host,
    or None. Nothing that proves the user's identity is sent before.

    Raise BadKey if the key is not the expected one, and another Unreachable if the host does not answer before the
    deadline (by `time.monotonic`, None for none) or its own time limit.
    """
    connection, key = _greeted(target, via, earlier(target.connect_timeout_s, deadline))
    try:
        known_hosts.check(target, key)
    except BaseException:
        connection.leave()
        raise
    return connection


def _greeted(target: Target, via: ParamikoTransport | None, deadline: float) -> tuple[ParamikoConnection, HostKey]:
    """Return (a connection with the encryption agreed on, the host's key, which is still unchecked); `via` is the
    connection to the last jump host, or None. Raise Unreachable if the host does not answer or agree before the
    deadline (by `time.monotonic`).
    """
    inner = _dial(target, deadline) if via is None else via.way_to(target, max(0.1, deadline - time.monotonic()))
    connection = ParamikoConnection(
        inner,
        max(1.0, deadline - time.monotonic()),
        asked_after_s=target.asked_after_s,
        silence_limit_s=target.silence_limit_s,
    )
    try:
        if not connection.agree(known_hosts.expected_kinds(target), deadline):
            raise silent(target)
        if not connection.is_active():
            error = connection.get_exception()
            if connection.remote_version:
                raise Unreachable(f"{who(target)}: no secure connection: {why(error)}")
            raise dropped(target)
        key = connection.get_remote_server_key()
        return connection, HostKey(target.known_as, key.get_name(), key.asbytes())
    except BaseException:
        connection.leave()
        raise


def _dial(target: Target, deadline: float) -> socket.socket:
    """Return a socket connected to the first of the host's addresses that answers; raise Unreachable if none does.

    Each address is given an equal share of the time that is left until `deadline`, by the monotonic clock.
    """
    addresses = _addresses(target, deadline)
    failed = silent(target)
    for number, (family, address) in enumerate(addresses):
        share_s = (deadline - time.monotonic()) / (len(addresses) - number)
        try:
            return _dialled(family, address, max(0.01, share_s), target.silence_limit_s)
        except TimeoutError:
            failed = silent(target)
        except OSError as error:
            failed = Unreachable(f"{who(target)} cannot be reached: {why(error)}", TRY)
    raise failed


def _dialled(family: int, address: Any, limit_s: float, silence_limit_s: float) -> socket.socket:
    """Return a socket connected to the address within `limit_s`; it breaks after `silence_limit_s` without an
    acknowledgement.
    """
    dialled = socket.socket(family, socket.SOCK_STREAM)
    try:
        dialled.settimeout(limit_s)
        dialled.connect(address)
        dialled.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if hasattr(socket, "TCP_USER_TIMEOUT"):  # of Linux; elsewhere silence is noticed a little later
            dialled.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, int(silence_limit_s * 1000))
    except BaseException:
        dialled.close()
        raise
    return dialled


def _addresses(target: Target, deadline: float) -> list[tuple[int, Any]]:
    """Return the addresses to which the host's name resolves, each as (address family, socket address); raise
    Unreachable if there are none at the deadline.

    They are resolved in a thread of their own, because a resolver has no time-out.
    """
    found: list[tuple[int, Any]] = []
    failed: list[OSError | UnicodeError] = []

    def resolve() -> None:
        """Resolve the name and store the addresses or the error."""
        try:
            answers = socket.getaddrinfo(target.hostname, target.port, type=socket.SOCK_STREAM)
            found.extend((family, address) for family, _, _, _, address in answers)
        except (OSError, UnicodeError) as error:
            failed.append(error)

    thread = threading.Thread(target=resolve, daemon=True)
    thread.start()
    thread.join(max(0.01, deadline - time.monotonic()))
    if failed:
        raise Unreachable(
            f"{who(target)} cannot be found: {why(failed[0])}",
            "hint: another name of the host, or `HostName` for it in the SSH configuration",
        )
    if not found:
        raise Unreachable(f"{who(target)} cannot be found: no answer about its name in time")
    return list(found)
