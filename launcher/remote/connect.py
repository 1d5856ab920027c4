"""Connect to a host and run commands there; the host is authenticated first, then the user. A command continues on the
host when its connection ends.
"""

import time
from collections.abc import Iterable, Sequence
from typing import Protocol

from launcher.remote.failures import Broken
from launcher.remote.known_hosts import HostKey
from launcher.remote.running import Channel, ClosedAtTheEnd, Done, Running
from launcher.remote.target import Target, who


class Transport(Protocol):
    """An open connection to a host, by paramiko or by the ssh program."""

    peer_address: str  # the host's address; empty if unknown, as behind a jump host

    def alive(self) -> bool:
        """Return whether the connection is open, as far as this process can tell."""

    def start(self, command: Sequence[str] | str) -> Channel:
        """Start the command, given as words or as a line for the user's shell, and return its channel. Raise Broken if
        the connection has ended, and Unreachable if the host refuses.
        """

    def channel_to(self, hostname: str, port: int) -> Channel:
        """Return a connection from the host to a port of `hostname`, a name that the host resolves.

        If that fails, raise Unreachable or, with the ssh program, return a channel that ends at once.
        """

    def close(self) -> None:
        """Close the connection completely; commands that were started on the host continue."""


def connect(target: Target, *, deadline: float | None = None) -> "Line":
    """Log in to the host before the deadline (by `time.monotonic`; None: only the target's own time limits apply) and
    return the connection.

    Raise UnknownKey, ChangedKey or RevokedKey for the host's key, NoAccess for the user's, Dropped or another
    Unreachable for the network, and BadInput if the transport cannot use the host's options.
    """
    if target.transport == "openssh":
        from launcher.remote.openssh import connected  # late: only one of the two is needed

        return Line(target, connected(target, deadline))
    from launcher.remote.by_paramiko import logged_in  # late: paramiko costs 0.3 s

    return Line(target, logged_in(target, deadline))


def host_key(target: Target, *, deadline: float | None = None) -> HostKey:
    """Return the key that the host presents, without a login on that host; its jump hosts are logged in to. Raise
    Unreachable if the host shows none before the deadline (by `time.monotonic`, None for none).
    """
    if target.transport == "openssh":
        from launcher.remote.openssh import shown_key  # late: only one of the two is needed
    else:
        from launcher.remote.by_paramiko import shown_key  # late: paramiko costs 0.3 s
    return shown_key(target, deadline)


class Line(ClosedAtTheEnd):
    """A connection to one host on which commands are run, for one caller at a time."""

    def __init__(self, target: Target, transport: Transport) -> None:
        self.target = target
        self._transport = transport

    @property
    def peer_address(self) -> str:
        """Return the host's address, or "" if it is not known."""
        return self._transport.peer_address

    @property
    def alive(self) -> bool:
        """Return whether the connection is open, as far as this process can tell."""
        return self._transport.alive()

    def run(self, argv: Sequence[str], *, stdin: bytes | Iterable[bytes] = b"", limit_s: float = 60.0) -> Done:
        """Run the command with `stdin` as its input and return its result once it has ended.

        Raise Lost if the connection ends, or `limit_s` passes, before the command has ended: it may then continue on
        the host. Raise Unreachable if the host refuses to start it.
        """
        deadline = time.monotonic() + limit_s
        with self.start(argv) as running:
            for piece in (stdin,) if isinstance(stdin, bytes) else stdin:
                if not running.feed(piece, deadline - time.monotonic()):
                    break  # it accepts no more, for a reason that its end shows
            done = running.finish(deadline - time.monotonic())
        if done.code is None and not self.alive:
            raise Broken(f"{who(self.target)}: the connection broke")
        return done

    def start(self, command: Sequence[str] | str) -> Running:
        """Start the command, given as words or as a line for the user's shell, and return it with its stdin open. Raise
        Broken if the connection has ended, and Unreachable if the host refuses.
        """
        return Running(who(self.target), self._transport.start(command))

    def to_port(self, port: int) -> Channel:
        """Return a connection to a port on the host's loopback address.

        If that fails, raise Unreachable or, with the ssh program, which reports it late, return a channel that ends at
        once.
        """
        return self._transport.channel_to("127.0.0.1", port)

    def close(self) -> None:
        """Close the connection completely; commands that were started on the host continue."""
        self._transport.close()
